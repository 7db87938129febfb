/* The model @NAME@ in C, written by Tilewright @VERSION@ for @TARGET@.
 *
@SIGNATURE@
 *
 * All functions may be called from any number of threads at once. Link with lib@NAME@.so; nothing else is needed.
 * A function that returns int32_t status gives TW_OK or why not; @NAME@_last_error() then says it in words.
 */
#ifndef @NAME@_H
#define @NAME@_H

#include <stdint.h>

#ifndef TILEWRIGHT_ABI
#define TILEWRIGHT_ABI 1 /* numbers and structures of one ABI never change; what is new comes at the end */

enum tw_dtype {
  TW_I1 = 1, /* one byte, 0 or 1 */
  TW_I8 = 2,
  TW_I16 = 3,
  TW_I32 = 4,
  TW_I64 = 5,
  TW_U8 = 6,
  TW_U16 = 7,
  TW_U32 = 8,
  TW_U64 = 9,
  TW_F16 = 10,
  TW_BF16 = 11,
  TW_F32 = 12,
  TW_F64 = 13,
  TW_F8E4M3 = 14,
  TW_F8E5M2 = 15
};

enum tw_status {
  TW_OK = 0,
  TW_BAD_ARGUMENT = 1,    /* a null pointer, or threads below 0 */
  TW_BAD_DIM = 2,         /* a dim outside its range */
  TW_BAD_SHAPE = 3,       /* an extent that is not what the dims say */
  TW_CHECK_FAILED = 4,    /* a condition that the model states does not hold at these dims */
  TW_MISALIGNED = 5,      /* a buffer not aligned to its elements, or an arena not aligned to 64 bytes */
  TW_OVERLAP = 6,         /* an output shares memory with an input or with another output */
  TW_SMALL_ARENA = 7,     /* fewer bytes than arena_bytes says */
  TW_NO_MEMORY = 8,       /* no arena was given and the system has no memory for one */
  TW_UNSUPPORTED_CPU = 9  /* this CPU lacks instructions that the library was made of */
};

typedef struct tw_dim {
  const char *name;
  int64_t lowest, highest, multiple_of; /* the legal values */
} tw_dim;

typedef struct tw_argument {
  const char *name;
  int32_t dtype; /* of enum tw_dtype */
  int32_t element_bytes;
  int32_t rank;               /* 0: one element, also for scalars */
  const char *const *extents; /* texts over the dims, one an axis, such as "T" or "2*T + 1" */
} tw_argument;
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* TILEWRIGHT_ABI of the library. */
int32_t @NAME@_abi(void);

/* How many there are; where `found` is not null, it points to them. They live as long as the process. */
int32_t @NAME@_dims(const tw_dim **found);
int32_t @NAME@_inputs(const tw_argument **found);
int32_t @NAME@_outputs(const tw_argument **found);

/* Reads the dims off the extents of all inputs (null for those of rank 0) and checks every extent. A dim that only a scalar
 * input gives is not changed: set it before. */
int32_t @NAME@_read_dims(const int64_t *const *input_shapes, int64_t *dims);

/* Writes the extents of all inputs and outputs. Either list may be null, and any entry of it. */
int32_t @NAME@_infer_shapes(const int64_t *dims, int64_t *const *input_shapes, int64_t *const *output_shapes);

/* Bytes that a call needs beside its inputs and outputs. threads: most of the call, 0 for one a core of the process. */
int32_t @NAME@_arena_bytes(const int64_t *dims, int32_t threads, int64_t *bytes);

/* Runs the model. Inputs and outputs are C-contiguous, in the order of @NAME@_inputs and @NAME@_outputs, aligned to their elements;
 * a scalar is a pointer to its value. arena: at least arena_bytes bytes, aligned to 64 and used by no other call meanwhile; null:
 * the library takes memory and keeps up to four such arenas for the next calls. threads as above. */
int32_t @NAME@_run(const int64_t *dims, const void *const *inputs, void *const *outputs, void *arena, int64_t arena_bytes,
                   int32_t threads);

/* What a status means; and what the last status other than TW_OK of the calling thread was about. */
const char *@NAME@_error_string(int32_t status);
const char *@NAME@_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
