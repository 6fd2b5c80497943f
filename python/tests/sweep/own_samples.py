"""What some operators want of their arguments. The key is the operator's name, with its overload where only that one wants it."""

import torch
from samples import B, F, I, T, V

_LIST = [F(4, 4), F(3)]
_OPTIMIZER = {
    "self": _LIST, "grads": _LIST, "exp_avgs": _LIST, "exp_avg_sqs": _LIST, "max_exp_avg_sqs": [], "state_sums": _LIST,
    "momentum_buffer_list": _LIST, "state_steps": [V(3.0), V(5.0)],
}  # fmt: skip
_TENSOR_LR = {"lr": T((), "float")}
_BATCHED = {"batch1": F(2, 4, 3), "batch2": F(2, 3, 4)}
_IMAGE = F(2, 4, 6, 6)
_VOLUME = F(2, 2, 6, 6, 6)
_CONV2 = {"self": _IMAGE, "input": _IMAGE, "weight": F(3, 4, 2, 2), "kernel_size": [2, 2], "bias": F(3), "stride": [1, 1],
          "padding": [0, 0], "dilation": [1, 1], "output_padding": [0, 0], "bias_sizes": [3], "grad_output": F(2, 3, 5, 5)}  # fmt: skip
_CONV3 = {"self": _VOLUME, "weight": F(3, 2, 2, 2, 2), "kernel_size": [2, 2, 2], "bias": F(3), "stride": [1, 1, 1],
          "padding": [0, 0, 0], "dilation": [1, 1, 1], "output_padding": [0, 0, 0]}  # fmt: skip
_BAG = {"weight": F(5, 3), "indices": I(6, high=5), "offsets": V(0, 2, 4, kind="int")}
_UP = {
    1: {"grad_output": F(2, 4, 8), "output_size": [8], "input_size": [2, 4, 4]},
    2: {"grad_output": F(2, 4, 8, 8), "output_size": [8, 8], "input_size": [2, 4, 4, 4]},
    3: {"grad_output": F(2, 2, 8, 8, 8), "output_size": [8, 8, 8], "input_size": [2, 2, 4, 4, 4]},
}
_GRID2 = {"input": _IMAGE, "grid": F(2, 5, 5, 2), "grad_output": F(2, 4, 5, 5), "output_mask": [True, True]}
_GRID3 = {"input": _VOLUME, "grid": F(2, 3, 3, 3, 3), "grad_output": F(2, 2, 3, 3, 3), "output_mask": [True, True]}
_CTC = {"log_probs": F(6, 2, 5, low=-3.0, high=-1.0), "targets": I(2, 3, low=1, high=5)}
_CTC_LENGTHS = {"input_lengths": [6, 5], "target_lengths": [3, 2]}
_CLASSES = {"self": F(4, 5), "target": I(4, high=5), "grad_output": F(4), "reduction": 0, "total_weight": F(), "weight": None}
_PIXELS = {"self": F(2, 3, 4, 4), "target": I(2, 4, 4, high=3), "grad_output": F(2, 4, 4), "reduction": 0, "total_weight": F(), "weight": None}
_QUANTIZED = {"dtype": torch.quint8, "scale": 0.1, "zero_point": 3}
_HEADS = {"query": F(2, 3, 4), "key": F(2, 3, 4), "value": F(2, 3, 4), "qkv_weight": F(12, 4), "qkv_bias": F(12),
          "proj_weight": F(4, 4), "proj_bias": F(4)}  # fmt: skip
_GROUPS = {"input": F(2, 4, 9), "weight": F(4), "bias": F(4), "N": 2, "C": 4, "HxW": 9, "group": 2, "grad_out": F(2, 4, 9),
           "mean": F(2, 2), "rstd": F(2, 2)}  # fmt: skip
_LU = {"LU_data": F(4, 4), "LU_pivots": V(1, 2, 3, 4, kind="int32"), "LU": F(4, 4), "pivots": V(1, 2, 3, 4, kind="int32"), "B": F(4, 2)}
_HALVES = {"self": T((2, 4, 4), "half"), "mat2": T((2, 4, 4), "half"), "batch1": T((2, 4, 4), "half"), "batch2": T((2, 4, 4), "half")}
_NORM = {"input": _IMAGE, "grad_out": _IMAGE, "mean": F(4), "invstd": F(4), "weight": F(4), "bias": F(4), "sum_dy": F(4),
         "sum_dy_xmu": F(4), "count": V(36, 36, kind="int32")}  # fmt: skip
_RANKS_NORM = {**_NORM, "mean": F(2, 4), "invstd": F(2, 4), "running_mean": F(4), "running_var": F(4), "counts": V(36.0, 36.0)}
_LABELS = {"self": F(3, 4), "target": V(0, 1, 2, -1, kind="int"), "grad_output": F(), "is_target": F(4)}

OWN = {
    # in place
    "float_power_": {"self": T((4, 4), "double")},
    "clip_": {"min": 0.3, "max": 0.6}, "clip_.Tensor": {"min": F(4, 4, high=0.4), "max": F(4, 4, low=0.6)},
    "clamp_": {"min": 0.3, "max": 0.6}, "clamp_.Tensor": {"min": F(4, 4, high=0.4), "max": F(4, 4, low=0.6)},
    "clip": {"min": 0.3, "max": 0.6}, "clip.Tensor_out": {"min": F(4, 4, high=0.4), "max": F(4, 4, low=0.6)},
    "clamp": {"min": 0.3, "max": 0.6}, "clamp.Tensor_out": {"min": F(4, 4, high=0.4), "max": F(4, 4, low=0.6)},
    "_sobol_engine_initialize_state_": {"self": I(4, 30, high=1), "dimension": 4},
    "_sobol_engine_scramble_": {"self": I(4, 30, high=9), "ltm": I(4, 30, 30, high=2), "dimension": 4},
    "addr_": {"vec1": F(4), "vec2": F(4)},
    "scatter_.reduce": {"reduce": "multiply"}, "scatter_.value_reduce": {"reduce": "multiply"},
    "scatter.reduce_out": {"reduce": "multiply"}, "scatter.value_reduce_out": {"reduce": "multiply"},
    "index_copy_": {"index": T((4,), "permutation")},
    "index_copy_.dimname": {"index": T((4,), "permutation")},
    "index_reduce_": {"reduce": "prod", "index": I(4)}, "index_reduce": {"reduce": "prod", "index": I(4)},
    "index_fill_.int_Tensor": {"index": I(4), "value": F()}, "index_fill.int_Tensor_out": {"index": I(4), "value": F()},
    "index_fill_.Dimname_Scalar": {"index": I(4)}, "index_fill_.Dimname_Tensor": {"index": I(4), "value": F()},
    "index_select": {"index": I(4)},
    "addbmm_": _BATCHED, "addbmm": {"self": F(4, 4), **_BATCHED},
    "_fused_adam_": _OPTIMIZER, "_fused_adamw_": _OPTIMIZER, "_fused_sgd_": _OPTIMIZER, "_fused_adagrad_": _OPTIMIZER,
    "_fused_adam": _OPTIMIZER, "_fused_adamw": _OPTIMIZER, "_fused_sgd": _OPTIMIZER, "_fused_adagrad": _OPTIMIZER,
    **{f"_fused_{name}.tensor_lr": {**_OPTIMIZER, **_TENSOR_LR} for name in ("adam_", "adamw_", "sgd_", "adagrad_")},
    **{f"_fused_{name}.tensor_lr_out": {**_OPTIMIZER, **_TENSOR_LR} for name in ("adam", "adamw", "sgd", "adagrad")},
    **{f"_foreach_addc{name}{end}": {"scalars": T((2,), values=(0.5, 0.25), on_host=True)} for name in ("mul", "div") for end in ("_.Tensor", ".Tensor_out")},
    "addmv_": {"self": F(4), "mat": F(4, 4), "vec": F(4)}, "addmv": {"self": F(4), "mat": F(4, 4), "vec": F(4)},
    "mv": {"vec": F(4)},
    # on CUDA alone
    "bmm.dtype_out": _HALVES, "baddbmm.dtype_out": _HALVES,
    "batch_norm_stats": _NORM, "batch_norm_elemt": _NORM, "batch_norm_backward_elemt": _NORM,
    "batch_norm_backward_reduce": {**_NORM, "input_g": True, "weight_g": True, "bias_g": True},
    "batch_norm_gather_stats": _RANKS_NORM, "batch_norm_gather_stats_with_counts": _RANKS_NORM,
    "conv_depthwise3d": {**_CONV3, "weight": F(2, 1, 2, 2, 2), "bias": F(2)},
    "randint_like.Tensor_out": {"high": T((), "int", 5, 6, on_host=True)},
    "randint_like.Tensor_generator_out": {"high": T((), "int", 5, 6, on_host=True)},
    # convolutions
    "thnn_conv2d": _CONV2, "_slow_conv2d_forward": _CONV2, "slow_conv_dilated2d": _CONV2, "_slow_conv2d_backward": _CONV2,
    "slow_conv_transpose2d": {**_CONV2, "weight": F(4, 3, 2, 2)}, "mkldnn_convolution": _CONV2, "convolution": _CONV2,
    "_convolution": _CONV2, "convolution_backward": _CONV2, "_nnpack_spatial_convolution": _CONV2,
    "slow_conv_transpose3d": {**_CONV3, "weight": F(2, 3, 2, 2, 2)}, "slow_conv_dilated3d": _CONV3, "slow_conv3d_forward": _CONV3,
    "conv_tbc": {"self": F(5, 2, 3), "weight": F(2, 3, 4), "bias": F(4)},
    # windows
    "fractional_max_pool2d": {"self": _IMAGE, "random_samples": F(2, 4, 2), "kernel_size": [2, 2], "output_size": [3, 3]},
    "fractional_max_pool3d": {"self": _VOLUME, "random_samples": F(2, 2, 3), "kernel_size": [2] * 3, "output_size": [3] * 3},
    "_pdist_backward": {"grad": F(6), "self": F(4, 4), "pdist": F(6)},
    "fractional_max_pool2d_backward": {"grad_output": F(2, 4, 3, 3), "self": _IMAGE, "kernel_size": [2, 2], "output_size": [3, 3],
                                       "indices": I(2, 4, 3, 3, high=36)},
    "fractional_max_pool3d_backward": {"grad_output": F(2, 2, 3, 3, 3), "self": _VOLUME, "kernel_size": [2] * 3,
                                       "output_size": [3] * 3, "indices": I(2, 2, 3, 3, 3, high=200)},
    # each index in a window of its own, as the forward pass gives it: some kernels add without atomics
    "adaptive_max_pool2d_backward": {"grad_output": F(2, 2, 2), "self": F(2, 4, 4),
                                     "indices": T((2, 2, 2), "int", values=(((1, 2), (8, 15)), ((5, 6), (13, 10))))},
    "adaptive_max_pool3d_backward": {"grad_output": F(1, 2, 2, 2), "self": F(1, 4, 4, 4),
                                     "indices": T((1, 2, 2, 2), "int", values=((((1, 2), (8, 15)), ((33, 34), (41, 42))),))},
    "avg_pool2d_backward": {"grad_output": F(2, 4, 3, 3), "self": _IMAGE, "kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0]},
    "avg_pool3d_backward": {"grad_output": F(2, 2, 3, 3, 3), "self": _VOLUME, "kernel_size": [2] * 3, "stride": [2] * 3, "padding": [0] * 3},
    "max_pool2d_with_indices_backward": {"grad_output": F(2, 4, 3, 3), "self": _IMAGE, "kernel_size": [2, 2], "stride": [2, 2],
                                         "padding": [0, 0], "dilation": [1, 1], "indices": I(2, 4, 3, 3, high=36)},
    **{f"{kind}_pad2d": {"self": _IMAGE, "padding": [1] * 4} for kind in ("reflection", "replication")},
    **{f"{kind}_pad3d": {"self": _VOLUME, "padding": [1] * 6} for kind in ("reflection", "replication")},
    **{f"{kind}_pad2d_backward": {"self": _IMAGE, "grad_output": F(2, 4, 8, 8), "padding": [1] * 4} for kind in ("reflection", "replication")},
    **{f"{kind}_pad3d_backward": {"self": _VOLUME, "grad_output": F(2, 2, 8, 8, 8), "padding": [1] * 6} for kind in ("reflection", "replication")},
    **{f"{name}_backward": _UP[1] for name in ("upsample_linear1d", "upsample_nearest1d", "_upsample_nearest_exact1d")},
    **{f"{name}_backward": _UP[2] for name in ("upsample_bicubic2d", "_upsample_bicubic2d_aa", "upsample_bilinear2d",
                                               "_upsample_bilinear2d_aa", "upsample_nearest2d", "_upsample_nearest_exact2d")},
    **{f"{name}_backward": _UP[3] for name in ("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d")},
    "upsample_bilinear2d.vec_out": {"input": _IMAGE, "output_size": [8, 8], "scale_factors": None},
    "upsample_nearest2d.vec_out": {"input": _IMAGE, "output_size": [8, 8], "scale_factors": None},
    "grid_sampler_2d": _GRID2, "grid_sampler_2d_backward": _GRID2, "_grid_sampler_2d_cpu_fallback": _GRID2,
    "grid_sampler_3d": _GRID3, "grid_sampler_3d_backward": _GRID3,
    "affine_grid_generator": {"theta": F(2, 2, 3), "size": [2, 3, 4, 4]},
    # losses
    "nll_loss": _CLASSES, "nll_loss_forward": _CLASSES, "nll_loss_backward": _CLASSES, "nll_loss2d": _PIXELS,
    "nll_loss2d_forward": _PIXELS, "nll_loss2d_backward": _PIXELS,
    "multi_margin_loss": {"self": F(4, 5), "target": I(4, high=5)},
    "multi_margin_loss_backward": {"self": F(4, 5), "target": I(4, high=5), "grad_output": F(), "p": 1, "margin": 1},
    **{name: {**_LABELS, "self": F(4)} for name in ("multilabel_margin_loss", "multilabel_margin_loss_forward", "multilabel_margin_loss_backward")},
    "_ctc_loss": {**_CTC, **_CTC_LENGTHS},
    "_ctc_loss.Tensor_out": {**_CTC, "input_lengths": V(6, 5, kind="int"), "target_lengths": V(3, 2, kind="int")},
    "_ctc_loss_backward": {**_CTC, **_CTC_LENGTHS, "grad": F(2), "neg_log_likelihood": F(2), "log_alpha": F(2, 6, 7)},
    # embeddings and indices
    **{name: _BAG for name in ("_embedding_bag", "_embedding_bag_forward_only")},
    "_embedding_bag_dense_backward": {"grad": F(3, 3), "indices": V(0, 1, 2, 3, 4, 0, kind="int"), "offset2bag": V(0, 0, 1, 1, 2, 2, kind="int"),
                                      "bag_size": V(2, 2, 2, kind="int"), "maximum_indices": V(0, 0, 0, kind="int"),
                                      "num_weights": 5, "mode": 0, "per_sample_weights": None},
    "_embedding_bag_per_sample_weights_backward": {"grad": F(3, 3), "weight": F(5, 3), "indices": V(0, 1, 2, 3, 4, 0, kind="int"),
                                                   "offsets": V(0, 2, 4, kind="int"), "offset2bag": V(0, 0, 1, 1, 2, 2, kind="int"), "mode": 0},
    "embedding_dense_backward": {"grad_output": F(3, 4), "indices": I(3, high=5), "num_weights": 5},
    "_pack_padded_sequence": {"input": F(3, 2, 4), "lengths": V(3, 2, kind="int"), "batch_first": False},
    "segment_reduce": {"data": F(6), "reduce": "sum", "lengths": V(2, 4, kind="int")},
    "_segment_reduce_backward": {"grad": F(2), "output": F(2), "data": F(6), "reduce": "sum", "lengths": V(2, 4, kind="int")},
    "_convert_indices_from_csr_to_coo": {"crow_indices": V(0, 2, 4, kind="int"), "col_indices": V(0, 1, 0, 1, kind="int")},
    "_convert_indices_from_coo_to_csr": {"self": V(0, 0, 1, 1, kind="int"), "size": 2},
    "triu_indices": {"offset": 0, "out": I(2, 10)}, "tril_indices": {"offset": 0, "out": I(2, 10)},
    "randint_like.Tensor_out": {"high": I(low=5, high=6)}, "randint_like.Tensor_generator_out": {"high": I(low=5, high=6)},
    # linear algebra
    "linalg_ldl_solve": {"LD": F(4, 4), "pivots": V(1, 2, 3, 4, kind="int32"), "B": F(4, 2)},
    "linalg_lu_solve": _LU, "lu_solve": {**_LU, "self": F(4, 2)}, "lu_unpack": _LU,
    "linalg_householder_product": {"tau": F(4)}, "orgqr": {"input2": F(4)}, "ormqr": {"input2": F(4), "input3": F(4, 4)},
    "linalg_cond.p_str_out": {"p": "fro"}, "linalg_tensorinv": {"self": F(2, 3, 6)},
    "cross": {"self": F(4, 3), "other": F(4, 3), "dim": 1}, "linalg_cross": {"self": F(4, 3), "other": F(4, 3)},
    "nuclear_norm.dim_out": {"dim": [0, 1]},
    "_int_mm": {"self": T((32, 32), "int8", -3, 3), "mat2": T((32, 32), "int8", -3, 3)},
    # normalisation, attention, recurrence
    "native_group_norm": _GROUPS, "native_group_norm_backward": _GROUPS,
    "native_dropout": {"p": 0.5, "train": True},
    "_native_multi_head_attention": _HEADS,
    "_transformer_encoder_layer_fwd": {**_HEADS, "src": F(2, 3, 4), **{f"norm_{kind}_{i}": F(4) for kind in ("weight", "bias") for i in (1, 2)},
                                       "ffn_weight_1": F(8, 4), "ffn_bias_1": F(8), "ffn_weight_2": F(4, 8), "ffn_bias_2": F(4)},
    "mkldnn_rnn_layer": {"input": F(3, 2, 4), "weight0": F(16, 4), "weight1": F(16, 4), "weight2": F(16), "weight3": F(16), "hx_": F(2, 4),
                         "cx_": F(2, 4), "batch_sizes": [], "mode": 2, "batch_first": False, "has_biases": True, "train": False},
    "glu_jvp": {"glu": F(2, 4), "x": F(4, 4), "dx": F(4, 4)}, "glu_backward": {"grad_output": F(2, 4), "self": F(4, 4)},
    "glu_backward_jvp": {"grad_x": F(4, 4), "grad_glu": F(2, 4), "x": F(4, 4), "dgrad_glu": F(2, 4), "dx": F(4, 4)},
    # quantisation
    "quantize_per_channel": {"scales": F(4), "zero_points": I(4), "dtype": torch.quint8}, "quantize_per_tensor": _QUANTIZED,
    "quantize_per_tensor.tensor_qparams_out": {"scale": F(), "zero_point": I(), "dtype": torch.quint8},
    "quantize_per_tensor.tensors_out": {"scales": F(2), "zero_points": I(2), "dtype": torch.quint8},
    "quantize_per_tensor_dynamic": {"dtype": torch.quint8},
    "_make_per_channel_quantized_tensor": {"self": T((4, 4), "uint8", 0, 9), "scale": F(4), "zero_point": I(4)},
    "_make_per_tensor_quantized_tensor": {"self": T((4, 4), "uint8", 0, 9)},
    "_fused_moving_avg_obs_fq_helper": {"observer_on": V(1, kind="int"), "fake_quant_on": V(1, kind="int"), "running_min": F(1),
                                        "running_max": F(1), "scale": F(1), "zero_point": V(0, kind="int32")},
    # shapes
    "select_scatter": {"src": F(4)}, "diagonal_scatter": {"src": F(4)}, "select_backward": {"grad_output": F(4), "input_sizes": [4, 4]},
    "diagonal_backward": {"grad_output": F(4), "input_sizes": [4, 4], "dim1": 0, "dim2": 1},
    "split_with_sizes_copy": {"split_sizes": [1, 3]}, "unsafe_split_with_sizes": {"split_sizes": [1, 3]},
    "empty_permuted": {"size": [2, 3], "physical_layout": [1, 0]},
    "_histogramdd_from_bin_cts": {"self": F(6, 2), "bins": [3, 3]}, "_histogramdd_bin_edges": {"self": F(6, 2), "bins": [3, 3]},
    "_histogramdd_from_bin_tensors": {"self": F(6, 2), "bins": [V(0.0, 0.5, 1.0), V(0.0, 0.5, 1.0)]},
    "_amp_update_scale": {"self": F(1), "growth_tracker": V(1, kind="int32"), "found_inf": V(0.0)},
    "_amp_update_scale_": {"self": F(1), "growth_tracker": V(1, kind="int32"), "found_inf": V(0.0)},
}  # fmt: skip
