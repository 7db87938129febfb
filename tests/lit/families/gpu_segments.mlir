// RUN: tilewright opt %s --pass 'tile{config="gpu_pointwise"},emit-micro-kernel{symbol=all}' | filecheck %s
// A block reads the address of its sequence's entry, ends where that is 0, then takes what differs from the entry: where the operand
// begins, and its extent. The block's number counts from the sequence's first block.
// CHECK: tw.kernel = "{{.*}}by_sequence\22:true{{.*}}\22kind\22:\22table\22
// CHECK: llvm.func @all(%[[X:[^:]+]]: !llvm.ptr<1> {{.*}}, %[[Y:[^:]+]]: !llvm.ptr<1> {{.*}}, %{{[^:]+}}: i64, %[[TABLE:[^:]+]]: !llvm.ptr<1>)
// CHECK: %[[BLOCK:.+]] = nvvm.read.ptx.sreg.ctaid.x
// CHECK: %[[AT:.+]] = llvm.getelementptr %[[TABLE]]
// CHECK: %[[ENTRY:.+]] = llvm.inline_asm has_side_effects {{.*}}@none exit;{{.*}} %[[AT]]
// CHECK: llvm.inttoptr %[[ENTRY]] : i64 to !llvm.ptr<1>
// CHECK: %[[FIRST:.+]] = llvm.load %{{.+}} invariant {alignment = 8 : i64} : !llvm.ptr<1> -> i64
// CHECK: %[[BEGIN:.+]] = llvm.load %{{.+}} invariant {alignment = 8 : i64} : !llvm.ptr<1> -> i64
// CHECK: llvm.getelementptr %[[X]][%[[BEGIN]]]
func.func @workload(%x: tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0}, %d0: index {tw.dims = ["d0"]})
    -> (tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0}) attributes {tw.segments = "pointer 0,pointer 1,dim d0"} {
  %e = tensor.empty(%d0) : tensor<?xf32>
  %t = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%x : tensor<?xf32>) outs(%e : tensor<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  return %t : tensor<?xf32>
}
