// RUN: tilewright opt %s --pass 'tile{config="gpu_attention{bm=32 bn=16}"},emit-micro-kernel{symbol=at}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="gpu_attention{bm=16 bn=16 vec=1 index=64}"},emit-micro-kernel{symbol=at}' | filecheck %s --check-prefix=FREE
// RUN: tilewright opt %s --pass 'tile{config="gpu_attention{bm=16 bn=16 split-kv=2}"},emit-micro-kernel{symbol=at}' | filecheck %s --check-prefix=SPLIT
// RUN: tilewright opt %s --pass 'tile{config="wgmma_attention{bn=64}"},emit-micro-kernel{symbol=at}' | filecheck %s --check-prefix=GROUPS


// A block per 32 queries of each point of the batch; whole chunks of 16 bytes by guards on strides and offsets.
// CHECK: tw.kernel = "{{.*}}B*floordiv(M + 31, 32){{.*}}mod(operand0.stride0, 8)
// CHECK: llvm.func @at(
// CHECK-SAME: nvvm.kernel, nvvm.reqntid = array<i32: 64>
// Queries are copied, then the first step of keys and values, unless no query sees a key.
// CHECK: nvvm.cp.async.shared.global
// CHECK: nvvm.cp.async.commit.group
// CHECK: scf.if
// CHECK: nvvm.cp.async.shared.global
// CHECK: nvvm.cp.async.wait.group 1
// CHECK: nvvm.barrier
// CHECK-COUNT-2: nvvm.ldmatrix {{.*}}layout = #nvvm.mma_layout<row>
// Steps that all queries see compare no places: scores, maximum over four lanes, exponentials, rescaled sums, products.
// CHECK: scf.for
// CHECK: nvvm.cp.async.wait.group 0
// CHECK: nvvm.barrier
// CHECK-COUNT-4: nvvm.mma.sync
// CHECK-NOT: arith.cmpi
// CHECK: arith.maxnumf
// CHECK-COUNT-2: nvvm.shfl.sync bfly
// CHECK: llvm.intr.fma
// CHECK: nvvm.ex2
// CHECK: arith.truncf %{{.*}} : vector<2xf32> to vector<2xf16>
// CHECK: nvvm.ldmatrix {{.*}}layout = #nvvm.mma_layout<col>
// CHECK-COUNT-4: nvvm.mma.sync
// CHECK: scf.yield
// The last ones do.
// CHECK: scf.for
// CHECK: nvvm.mma.sync
// CHECK: arith.cmpi slt
// CHECK: arith.select
// CHECK: nvvm.mma.sync
// CHECK: scf.yield
// CHECK: arith.divf
// CHECK: nvvm.bar.warp.sync
// CHECK: arith.truncf %{{.*}} : vector<8xf32> to vector<8xf16>
// CHECK: llvm.store %{{.*}} {alignment = 16 : i64} : vector<8xf16>, !llvm.ptr<1>

// FREE: guards\22:[]
// FREE-NOT: nvvm.cp.async.shared.global
// FREE: nvvm.mma.sync

// SPLIT: tw.kernel = "{{.*}}workspace{{.*}}at_join
// SPLIT: llvm.func @at(
// SPLIT: nvvm.mma.sync
// SPLIT: llvm.func @at_join(
// SPLIT: nvvm.ex2
// Two warpgroups multiply, one copies queries, then keys and values by turns, through rings of their own.
// GROUPS: tw.kernel = "{{.*}}tensor_map{{.*}}box\22:[64,128,1],\22swizzle\22:128{{.*}}B*floordiv(M + 127, 128)
// GROUPS: llvm.func @at(
// GROUPS-SAME: nvvm.reqntid = array<i32: 384>
// GROUPS-COUNT-10: nvvm.mbarrier.init
// GROUPS: nvvm.setmaxregister decrease 24
// GROUPS: nvvm.cp.async.bulk.tensor
// GROUPS: scf.for
// GROUPS-COUNT-2: nvvm.cp.async.bulk.tensor
// GROUPS: } else {
// GROUPS: nvvm.setmaxregister increase 240
// The first step has the last keys; its places are compared, as are those of the first loop.
// GROUPS-COUNT-2: wgmma.mma_async.sync.aligned.m64n64k16
// GROUPS: wgmma.wait_group.sync.aligned 0
// GROUPS: arith.cmpi
// GROUPS: nvvm.ex2
// GROUPS: scf.for
// GROUPS: arith.cmpi
// Scores of a step, products of the exponentials of the step before, which are in registers; exponentials between the waits.
// GROUPS: scf.for
// GROUPS: wgmma.fence.sync.aligned
// GROUPS-COUNT-2: wgmma.mma_async.sync.aligned.m64n64k16
// GROUPS: wgmma.commit_group
// GROUPS: wgmma.fence.sync.aligned
// GROUPS-COUNT-4: wgmma.mma_async.sync.aligned.m64n32k16{{.*}}, {$32, $33, $34, $35}, $36, p
// GROUPS: wgmma.wait_group.sync.aligned 1
// GROUPS: nvvm.mbarrier.arrive
// GROUPS: nvvm.ex2
// GROUPS: wgmma.wait_group.sync.aligned 0
// GROUPS: nvvm.mbarrier.arrive
// GROUPS: arith.truncf {{.*}} to vector<2xf16>
// GROUPS: wgmma.wait_group.sync.aligned 0
func.func @workload(%q: tensor<?x?x32xf16> {tw.dims = ["B", "M", 32], tw.unit = 2}, %k: tensor<?x?x32xf16> {tw.dims = ["B", "N", 32], tw.unit = 2}, %v: tensor<?x?x32xf16> {tw.dims = ["B", "N", 32], tw.unit = 2}, %B: index {tw.dims = ["B"]}, %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]}) -> (tensor<?x?x32xf16> {tw.dims = ["B", "M", 32], tw.unit = 2}) {
%shift = arith.subi %N, %M : index
%zs_value = arith.constant 0.0 : f32
%zs_empty = tensor.empty(%B, %M, %N) : tensor<?x?x?xf32>
%zs = linalg.fill ins(%zs_value : f32) outs(%zs_empty : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
%zr_value = arith.constant 0.0 : f32
%zr_empty = tensor.empty(%B, %M) : tensor<?x?xf32>
%zr = linalg.fill ins(%zr_value : f32) outs(%zr_empty : tensor<?x?xf32>) -> tensor<?x?xf32>
%zo_value = arith.constant 0.0 : f32
%zo_empty = tensor.empty(%B, %M) : tensor<?x?x32xf32>
%zo = linalg.fill ins(%zo_value : f32) outs(%zo_empty : tensor<?x?x32xf32>) -> tensor<?x?x32xf32>
%low_value = arith.constant 0xFF800000 : f32
%low_empty = tensor.empty(%B, %M) : tensor<?x?xf32>
%low = linalg.fill ins(%low_value : f32) outs(%low_empty : tensor<?x?xf32>) -> tensor<?x?xf32>
%es = tensor.empty(%B, %M, %N) : tensor<?x?x?xf32>
%ew = tensor.empty(%B, %M, %N) : tensor<?x?x?xf16>
%scores = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%q, %k : tensor<?x?x32xf16>, tensor<?x?x32xf16>)
      outs(%zs : tensor<?x?x?xf32>) { ^bb0(%x0: f16, %x1: f16, %acc: f32): %w0 = arith.extf %x0 : f16 to f32
%w1 = arith.extf %x1 : f16 to f32
 %p = arith.mulf %w0, %w1 : f32
 %s = arith.addf %acc, %p : f32
 linalg.yield %s : f32 } -> tensor<?x?x?xf32>
%logits = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%scores : tensor<?x?x?xf32>)
      outs(%es : tensor<?x?x?xf32>) { ^bb0(%x0: f32, %acc: f32): %c = arith.constant 0.125 : f32
 %a = arith.mulf %x0, %c : f32
%i = linalg.index 1 : index
      %j = linalg.index 2 : index
      %last = arith.addi %i, %shift : index
      %lowest = arith.constant 0xFF800000 : f32
%see = arith.cmpi sle, %j, %last : index
          %o = arith.select %see, %a, %lowest : f32
          linalg.yield %o : f32 } -> tensor<?x?x?xf32>
%top = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%logits : tensor<?x?x?xf32>)
      outs(%low : tensor<?x?xf32>) { ^bb0(%x0: f32, %acc: f32): %a = arith.maximumf %x0, %acc : f32
 linalg.yield %a : f32 } -> tensor<?x?xf32>
%powers = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%logits, %top : tensor<?x?x?xf32>, tensor<?x?xf32>)
      outs(%es : tensor<?x?x?xf32>) { ^bb0(%x0: f32, %x1: f32, %acc: f32): %a = arith.subf %x0, %x1 : f32
 %b = math.exp %a : f32
 linalg.yield %b : f32 } -> tensor<?x?x?xf32>
%total = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%powers : tensor<?x?x?xf32>)
      outs(%zr : tensor<?x?xf32>) { ^bb0(%x0: f32, %acc: f32): %a = arith.addf %x0, %acc : f32
 linalg.yield %a : f32 } -> tensor<?x?xf32>
%weights = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%powers, %total : tensor<?x?x?xf32>, tensor<?x?xf32>)
      outs(%ew : tensor<?x?x?xf16>) { ^bb0(%x0: f32, %x1: f32, %acc: f16): %a = arith.divf %x0, %x1 : f32
 %c = arith.truncf %a : f32 to f16
 linalg.yield %c : f16 } -> tensor<?x?x?xf16>
%mixed = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>, affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%weights, %v : tensor<?x?x?xf16>, tensor<?x?x32xf16>)
      outs(%zo : tensor<?x?x32xf32>) { ^bb0(%x0: f16, %x1: f16, %acc: f32): %w0 = arith.extf %x0 : f16 to f32
%w1 = arith.extf %x1 : f16 to f32
 %p = arith.mulf %w0, %w1 : f32
 %s = arith.addf %acc, %p : f32
 linalg.yield %s : f32 } -> tensor<?x?x32xf32>
%er = tensor.empty(%B, %M) : tensor<?x?x32xf16>
%result = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%mixed : tensor<?x?x32xf32>)
      outs(%er : tensor<?x?x32xf16>) { ^bb0(%x0: f32, %acc: f16): %a = arith.truncf %x0 : f32 to f16
 linalg.yield %a : f16 } -> tensor<?x?x32xf16>
return %result : tensor<?x?x32xf16>
}
