// Runs the model @NAME@ at any shape:  ./example @USAGE@ [FOLDER]
//
//   c++ -O2 example.cpp -o example -L. -l@NAME@ -Wl,-rpath,'$ORIGIN'
//
// With a folder, inputs are read from its files INPUT.bin and outputs written to OUTPUT.bin: bytes of C-contiguous arrays.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "@NAME@.h"

static void check(int32_t status) {
  if (status == TW_OK) return;
  std::cerr << @NAME@_error_string(status) << ": " << @NAME@_last_error() << "\n";
  std::exit(1);
}

struct Array {
  const tw_argument *argument;
  std::vector<int64_t> shape;
  std::vector<char> bytes;  // of new: aligned to 16, enough for every element type

  explicit Array(const tw_argument *of) : argument(of), shape(of->rank) {}

  void allocate() {
    bytes.resize(std::accumulate(shape.begin(), shape.end(), int64_t{argument->element_bytes}, std::multiplies<int64_t>()));
  }

  std::string path(const std::string &folder) const { return folder + "/" + argument->name + ".bin"; }
};

static std::vector<Array> arrays(const tw_argument *table, int32_t count) {
  std::vector<Array> made;
  for (int32_t i = 0; i < count; i++) made.emplace_back(&table[i]);
  return made;
}

int main(int argc, char **argv) {
  const tw_dim *dim_table = nullptr;
  const tw_argument *input_table = nullptr, *output_table = nullptr;
  const int32_t dim_count = @NAME@_dims(&dim_table);
  const int32_t input_count = @NAME@_inputs(&input_table), output_count = @NAME@_outputs(&output_table);
  if (argc < 1 + dim_count) {
    std::cerr << "usage: " << argv[0] << " @USAGE@ [FOLDER]\n";
    return 2;
  }
  std::vector<int64_t> dims;
  for (int32_t i = 0; i < dim_count; i++) dims.push_back(std::atoll(argv[1 + i]));
  const std::string folder = argc > 1 + dim_count ? argv[1 + dim_count] : "";

  // What the shapes of inputs and outputs are at these dims.
  std::vector<Array> inputs = arrays(input_table, input_count), outputs = arrays(output_table, output_count);
  std::vector<int64_t *> input_shapes, output_shapes;
  for (Array &a : inputs) input_shapes.push_back(a.shape.data());
  for (Array &a : outputs) output_shapes.push_back(a.shape.data());
  check(@NAME@_infer_shapes(dims.data(), input_shapes.data(), output_shapes.data()));

  std::vector<const void *> input_pointers;
  std::vector<void *> output_pointers;
  for (Array &a : inputs) {
    a.allocate();
    if (!folder.empty() && !std::ifstream(a.path(folder), std::ios::binary).read(a.bytes.data(), a.bytes.size())) {
      std::cerr << a.path(folder) << ": wanted " << a.bytes.size() << " bytes\n";
      return 1;
    }
    input_pointers.push_back(a.bytes.data());
  }
  for (Array &a : outputs) {
    a.allocate();
    output_pointers.push_back(a.bytes.data());
  }

  // One arena serves calls one after the other; calls at the same time need one each. With nullptr the library finds its own.
  int64_t arena_bytes = 0;
  check(@NAME@_arena_bytes(dims.data(), 0, &arena_bytes));
  void *arena = std::aligned_alloc(64, (arena_bytes + 63) / 64 * 64);
  check(@NAME@_run(dims.data(), input_pointers.data(), output_pointers.data(), arena, arena_bytes, 0));
  std::free(arena);

  for (const Array &a : outputs) {
    std::cout << a.argument->name << ":";
    for (int64_t extent : a.shape) std::cout << " " << extent;
    std::cout << "\n";
    if (!folder.empty()) std::ofstream(a.path(folder), std::ios::binary).write(a.bytes.data(), a.bytes.size());
  }
  return 0;
}
