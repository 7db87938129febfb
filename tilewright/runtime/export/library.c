/* The C interface of a compiled model around its host program (tw_run, tw_call) and the thread pool. tables.h, which
 * c_tables.py writes, holds what is particular to a model. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef CGROUPS
#define CGROUPS "/sys/fs/cgroup"
#endif

typedef struct {
  int argument; /* of the program, or -1: the dim is read from no extent */
  int axis;     /* among the extents of all inputs */
  int64_t factor, offset;
} site;

typedef struct {
  int dim;
  site at;
} repeat;

typedef struct {
  int input, output;
} donation;

enum { TENSOR, SCALAR, SCALAR_DIM };

/* What a model without dims does not need. */
#define MAYBE __attribute__((unused)) static

MAYBE int64_t add(int64_t a, int64_t b, int *bad) {
  int64_t sum;
  *bad |= __builtin_add_overflow(a, b, &sum);
  return sum;
}

MAYBE int64_t mul(int64_t a, int64_t b, int *bad) {
  int64_t product;
  *bad |= __builtin_mul_overflow(a, b, &product);
  return product;
}

MAYBE int64_t floor_mod(int64_t a, int64_t b, int *bad) {
  if (b == 0 || b == -1) {
    *bad |= b == 0;
    return 0;
  }
  int64_t rest = a % b;
  return rest != 0 && (rest ^ b) < 0 ? rest + b : rest;
}

MAYBE int64_t floor_div(int64_t a, int64_t b, int *bad) {
  int64_t rest = floor_mod(a, b, bad);
  if (*bad) return 0;
  int64_t whole = a - rest;
  return b == -1 ? mul(whole, -1, bad) : whole / b;
}

MAYBE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
MAYBE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

#include "tables.h"

#define ALIGNMENT 64

int64_t tw_run(void *table, void **tensors, const uint64_t *scalars, const int64_t *dims, void *arena, int64_t threads);
int64_t tw_call(void *table, void **tensors, const uint64_t *scalars, const int64_t *dims, int64_t threads);
void tw_launch(void);
void tw_parallel_for(void);
void tw_alloc(void);
void tw_release(void);
void tw_forked(void);

static _Thread_local char message[512];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static const void *device[10]; /* the table of tilewright/runtime/device.py */
static int64_t cores;
static const char *lacking;

static int32_t failed(int32_t status, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(message, sizeof message, format, values);
  va_end(values);
  return status;
}

/* Integers at the start of a file; how many there are. */
static int read_integers(const char *path, int64_t *values, int count) {
  FILE *file = fopen(path, "re");
  int found = 0;
  while (file && found < count && fscanf(file, "%" SCNd64, &values[found]) == 1) found++;
  if (file) fclose(file);
  return found;
}

/* Whole cores' worth of time that the control group of a container gives, at least one; of both versions. */
static int64_t cores_in_time(void) {
  int64_t quota = 0, period = 0, words[2];
  if (read_integers(CGROUPS "/cpu.max", words, 2) == 2) {
    quota = words[0];
    period = words[1];
  } else if (read_integers(CGROUPS "/cpu/cpu.cfs_quota_us", &quota, 1) == 1) {
    read_integers(CGROUPS "/cpu/cpu.cfs_period_us", &period, 1);
  }
  if (quota <= 0 || period <= 0) return MOST_THREADS;
  return quota < period ? 1 : quota / period;
}

static void start(void) {
  cpu_set_t set;
  cores = sched_getaffinity(0, sizeof set, &set) ? 1 : smaller(CPU_COUNT(&set), MOST_THREADS);
  cores = smaller(cores, cores_in_time());
  device[0] = (const void *)(intptr_t)cores;
  device[1] = kernels;
  device[2] = (const void *)tw_launch;
  device[3] = (const void *)tw_parallel_for;
  device[4] = (const void *)tw_alloc;
  device[5] = (const void *)tw_release;
  lacking = lacking_feature();
  pthread_atfork(NULL, NULL, tw_forked);
}

static int32_t ready(const void *dims, int32_t threads) {
  pthread_once(&once, start);
  if (lacking)
    return failed(TW_UNSUPPORTED_CPU, "this CPU has no %s, which %s was compiled for; export the model for this CPU", lacking, NAME);
  if (!dims && DIMS) return failed(TW_BAD_ARGUMENT, "dims is null; wanted %d values", DIMS);
  if (threads < 0) return failed(TW_BAD_ARGUMENT, "threads = %" PRId32 "; wanted at least 1, or 0 for one a core", threads);
  return TW_OK;
}

static int64_t threads_of(int32_t threads) { return threads ? smaller(threads, cores) : cores; }

static int32_t check_dims(const int64_t *dims) {
  for (int i = 0; i < DIMS; i++) {
    const tw_dim *dim = &dim_table[i];
    if (!IS_BOUNDED && dims[i] < 0) return failed(TW_BAD_DIM, "dim %s = %" PRId64 "; wanted 0 or more", dim->name, dims[i]);
    if (IS_BOUNDED && (dims[i] < dim->lowest || dims[i] > dim->highest))
      return failed(TW_BAD_DIM, "dim %s = %" PRId64 "; wanted %" PRId64 "..%" PRId64 ", for which %s was compiled", dim->name, dims[i],
                    dim->lowest, dim->highest, NAME);
    if (IS_BOUNDED && dims[i] % dim->multiple_of)
      return failed(TW_BAD_DIM, "dim %s = %" PRId64 "; wanted a multiple of %" PRId64, dim->name, dims[i], dim->multiple_of);
  }
  return TW_OK;
}

static int64_t bytes_of(const tw_argument *argument, const int64_t *extents, int *bad) {
  int64_t bytes = argument->element_bytes;
  int empty = 0;
  for (int i = 0; i < argument->rank; i++) {
    *bad |= extents[i] < 0;
    empty |= extents[i] == 0;
    bytes = mul(bytes, extents[i] ? extents[i] : 1, bad);
  }
  return empty ? 0 : bytes;
}

static int negative_or_long(const tw_argument *table, int count, const int64_t *extents) {
  int bad = 0;
  for (int i = 0; i < count; extents += table[i].rank, i++) bytes_of(&table[i], extents, &bad);
  return bad;
}

/* The extents of all inputs and, where not null, outputs, after the dims are found legal. */
static int32_t extents_of(const int64_t *dims, int64_t *of_inputs, int64_t *of_outputs) {
  int32_t status = check_dims(dims);
  if (status) return status;
  int bad = 0;
  input_extents(dims, of_inputs, &bad);
  bad |= negative_or_long(input_table, INPUTS, of_inputs);
  if (of_outputs) {
    output_extents(dims, of_outputs, &bad);
    bad |= negative_or_long(output_table, OUTPUTS, of_outputs);
  }
  if (bad) return failed(TW_BAD_DIM, "a size is negative, divides by zero or leaves 63 bits; %s is not defined at these dims", NAME);
  return TW_OK;
}

int32_t MODEL_abi(void) { return TILEWRIGHT_ABI; }

int32_t MODEL_dims(const tw_dim **found) {
  if (found) *found = dim_table;
  return DIMS;
}

int32_t MODEL_inputs(const tw_argument **found) {
  if (found) *found = input_table;
  return INPUTS;
}

int32_t MODEL_outputs(const tw_argument **found) {
  if (found) *found = output_table;
  return OUTPUTS;
}

static int64_t value_at(const site *at, const int64_t *extents) {
  int bad = 0;
  return floor_div(extents[at->axis] - at->offset, at->factor, &bad);
}

static int32_t check_extents(const int64_t *given, const int64_t *wanted) {
  int axis = 0;
  for (int i = 0; i < INPUTS; i++)
    for (int j = 0; j < input_table[i].rank; j++, axis++)
      if (given[axis] != wanted[axis])
        return failed(TW_BAD_SHAPE, "input %s, axis %d: wanted extent %" PRId64 " (%s), got %" PRId64, input_table[i].name, j,
                      wanted[axis], input_table[i].extents[j], given[axis]);
  return TW_OK;
}

int32_t MODEL_read_dims(const int64_t *const *input_shapes, int64_t *dims) {
  int64_t given[INPUT_EXTENTS + 1], wanted[INPUT_EXTENTS + 1];
  int32_t status = ready(dims, 0);
  if (status) return status;
  if (!input_shapes) return failed(TW_BAD_ARGUMENT, "input_shapes is null; wanted one entry an input");
  int axis = 0;
  for (int i = 0; i < INPUTS; i++)
    for (int j = 0; j < input_table[i].rank; j++, axis++) {
      if (!input_shapes[i])
        return failed(TW_BAD_ARGUMENT, "the shape of input %s is null; wanted %" PRId32 " extents", input_table[i].name,
                      input_table[i].rank);
      given[axis] = input_shapes[i][j];
      if (given[axis] < 0)
        return failed(TW_BAD_SHAPE, "input %s, axis %d: wanted an extent, got %" PRId64, input_table[i].name, j, given[axis]);
    }
  for (int i = 0; i < DIMS; i++)
    if (site_table[i].argument >= 0) dims[i] = value_at(&site_table[i], given);
  for (int i = 0; i < REPEATS; i++) {
    const repeat *other = &repeat_table[i];
    if (value_at(&other->at, given) != dims[other->dim])
      return failed(TW_BAD_SHAPE, "input %s gives %s = %" PRId64 ", and another input %" PRId64 "; these extents must be equal",
                    input_table[other->at.argument].name, dim_table[other->dim].name, value_at(&other->at, given), dims[other->dim]);
  }
  status = extents_of(dims, wanted, NULL);
  return status ? status : check_extents(given, wanted);
}

static void copy_extents(const tw_argument *table, int count, const int64_t *extents, int64_t *const *shapes) {
  for (int i = 0; i < count; extents += table[i].rank, i++)
    if (shapes && shapes[i]) memcpy(shapes[i], extents, table[i].rank * sizeof *extents);
}

int32_t MODEL_infer_shapes(const int64_t *dims, int64_t *const *input_shapes, int64_t *const *output_shapes) {
  int64_t of_inputs[INPUT_EXTENTS + 1], of_outputs[OUTPUT_EXTENTS + 1];
  int32_t status = ready(dims, 0);
  if (!status) status = extents_of(dims, of_inputs, of_outputs);
  if (status) return status;
  copy_extents(input_table, INPUTS, of_inputs, input_shapes);
  copy_extents(output_table, OUTPUTS, of_outputs, output_shapes);
  return TW_OK;
}

int32_t MODEL_arena_bytes(const int64_t *dims, int32_t threads, int64_t *bytes) {
  int32_t status = ready(dims, threads);
  if (!status) status = check_dims(dims);
  if (status) return status;
  if (!bytes) return failed(TW_BAD_ARGUMENT, "bytes is null; wanted where to write them");
  int bad = 0;
  int64_t found = arena_size(dims, threads_of(threads), &bad);
  if (bad || found < 0) return failed(TW_BAD_DIM, "the size of the arena leaves 63 bits at these dims; call with smaller shapes");
  *bytes = found;
  return TW_OK;
}

typedef struct {
  const char *begin, *end;
} memory;

static int32_t take(const char *kind, const tw_argument *argument, const void *data, const int64_t *extents, memory *found) {
  int bad = 0;
  int64_t bytes = bytes_of(argument, extents, &bad);
  if (!data && bytes) return failed(TW_BAD_ARGUMENT, "%s %s is null; wanted %" PRId64 " bytes", kind, argument->name, bytes);
  if ((uintptr_t)data % argument->element_bytes)
    return failed(TW_MISALIGNED, "%s %s is at %p; wanted a multiple of its element's %" PRId32 " bytes", kind, argument->name, data,
                  argument->element_bytes);
  *found = (memory){data, (const char *)data + bytes};
  return TW_OK;
}

static int is_donated(int input, int output) {
  for (int i = 0; i < DONATIONS; i++)
    if (donation_table[i].input == input && donation_table[i].output == output) return 1;
  return 0;
}

static int apart(memory a, memory b) {
  return a.begin == a.end || b.begin == b.end || a.begin >= b.end || b.begin >= a.end;
}

static int32_t check_apart(const memory *of_inputs, const memory *of_outputs) {
  for (int i = 0; i < OUTPUTS; i++) {
    for (int j = 0; j < INPUTS; j++)
      if (!apart(of_outputs[i], of_inputs[j]) && !(is_donated(j, i) && of_outputs[i].begin == of_inputs[j].begin))
        return failed(TW_OVERLAP, "output %s shares memory with input %s; give it memory of its own", output_table[i].name,
                      input_table[j].name);
    for (int j = 0; j < i; j++)
      if (!apart(of_outputs[i], of_outputs[j]))
        return failed(TW_OVERLAP, "outputs %s and %s share memory; give each memory of its own", output_table[j].name,
                      output_table[i].name);
  }
  return TW_OK;
}

static int64_t integer_at(const void *data, const tw_argument *argument) {
  uint64_t bits = 0;
  memcpy(&bits, data, argument->element_bytes);
  if (argument->dtype == TW_I1 || (argument->dtype >= TW_U8 && argument->dtype <= TW_U64)) return (int64_t)bits;
  int shift = 64 - 8 * argument->element_bytes;
  return (int64_t)(bits << shift) >> shift;
}

/* The tensors and scalars of the native convention, from a call's arguments. */
static int32_t bind(const int64_t *dims, const void *const *inputs, void *const *outputs, void **tensors, uint64_t *scalars) {
  int64_t of_inputs[INPUT_EXTENTS + 1], of_outputs[OUTPUT_EXTENTS + 1];
  memory read[INPUTS + 1], written[OUTPUTS + 1];
  int32_t status = extents_of(dims, of_inputs, of_outputs);
  if (status) return status;
  const int64_t *at = of_inputs;
  for (int i = 0; i < INPUTS; at += input_table[i].rank, i++) {
    const tw_argument *argument = &input_table[i];
    if ((status = take("input", argument, inputs[i], at, &read[i]))) return status;
    if (input_kinds[i] == TENSOR) *tensors++ = (void *)inputs[i];
    if (input_kinds[i] == SCALAR) {
      *scalars = 0;
      memcpy(scalars++, inputs[i], argument->element_bytes);
    }
  }
  for (int i = 0; i < SCALAR_DIMS; i++) {
    int input = scalar_dims[i].input, dim = scalar_dims[i].output;
    int64_t given = integer_at(inputs[input], &input_table[input]);
    if (given != dims[dim])
      return failed(TW_BAD_SHAPE, "input %s is %" PRId64 " and dim %s is %" PRId64 "; they must be equal", input_table[input].name,
                    given, dim_table[dim].name, dims[dim]);
  }
  for (int i = 0; i < CONSTANTS; i++) *tensors++ = (void *)constants[i];
  at = of_outputs;
  for (int i = 0; i < OUTPUTS; at += output_table[i].rank, i++) {
    if ((status = take("output", &output_table[i], outputs[i], at, &written[i]))) return status;
    *tensors++ = outputs[i];
  }
  return check_apart(read, written);
}

int32_t MODEL_run(const int64_t *dims, const void *const *inputs, void *const *outputs, void *arena, int64_t arena_bytes,
                 int32_t threads) {
  void *tensors[INPUTS + CONSTANTS + OUTPUTS + STRIDES + 1] = {0};  /* strides of 0: of dense inputs */
  uint64_t scalars[INPUTS + 1];
  int32_t status = ready(dims, threads);
  if (status) return status;
  if ((!inputs && INPUTS) || (!outputs && OUTPUTS))
    return failed(TW_BAD_ARGUMENT, "inputs or outputs is null; wanted %d inputs and %d outputs", INPUTS, OUTPUTS);
  if ((status = bind(dims, inputs, outputs, tensors, scalars))) return status;
  int64_t needed;
  if ((status = MODEL_arena_bytes(dims, threads, &needed))) return status;
  if (arena && (uintptr_t)arena % ALIGNMENT)
    return failed(TW_MISALIGNED, "the arena is at %p; wanted a multiple of %d bytes", arena, ALIGNMENT);
  if (arena && arena_bytes < needed)
    return failed(TW_SMALL_ARENA, "the arena has %" PRId64 " bytes; wanted %" PRId64 ", which %s_arena_bytes gives", arena_bytes, needed,
                  NAME);
  int64_t used = threads_of(threads);
  int64_t result = arena ? tw_run(device, tensors, scalars, dims, arena, used) : tw_call(device, tensors, scalars, dims, used);
  if (result < 0)
    return failed(TW_NO_MEMORY, "no memory for an arena of %" PRId64 " bytes; call with smaller shapes or fewer threads", needed);
  return result ? failed(TW_CHECK_FAILED, "%s", checks[result - 1]) : TW_OK;
}

const char *MODEL_error_string(int32_t status) {
  static const char *const texts[] = {
      "done",
      "a null pointer or a number of threads below 0",
      "a dim is outside its range",
      "an extent is not what the dims say",
      "a condition that the model states does not hold at these dims",
      "a buffer is not aligned to its elements, or the arena not to 64 bytes",
      "an output shares memory with an input or with another output",
      "the arena is smaller than arena_bytes says",
      "no memory for an arena",
      "this CPU lacks instructions that the library was made of",
  };
  int known = status >= 0 && status < (int32_t)(sizeof texts / sizeof *texts);
  return known ? texts[status] : "no status of this library";
}

const char *MODEL_last_error(void) { return message; }
