// RUN: tilewright opt %s --pass 'tile{config="gpu_pointwise"},emit-micro-kernel{symbol=many}' | filecheck %s
// Eleven tensors: their entries come by value. A block looks for the last one whose first block is not behind it, in steps of 8, 4,
// 2 and 1, then takes where its operands begin and its extent from the words behind the eleven first blocks.
// CHECK: tw.kernel = "{{.*}}\22kind\22:\22entries\22{{.*}}\22bytes\22:352
// CHECK: llvm.func @many({{.*}}, %[[ENTRIES:[^:]+]]: !llvm.ptr {llvm.align = 8 : i64, llvm.byval = !llvm.array<352 x i8>})
// CHECK: %[[BLOCK:.+]] = nvvm.read.ptx.sreg.ctaid.x
// CHECK-COUNT-4: arith.select
// CHECK: llvm.getelementptr %[[ENTRIES]]
// CHECK-NOT: inline_asm
func.func @workload(%x: tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0}, %d0: index {tw.dims = ["d0"]})
    -> (tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0}) attributes {tw.segments = "pointer 0,pointer 1,dim d0,members 11"} {
  %e = tensor.empty(%d0) : tensor<?xf32>
  %t = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%x : tensor<?xf32>) outs(%e : tensor<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  return %t : tensor<?xf32>
}
