#include "plan_routes.h"

namespace flashrt {

namespace {

constexpr RouteInfo kRoutes[] = {
#define FLASHRT_ROUTE(gpu, d, dv, dtype, mask, min_l, max_l, mlx_tile, score_bytes) \
  {#gpu, d, dv, #dtype, #mask, min_l, max_l, mlx_tile, score_bytes},
#include "registry.inc"
#undef FLASHRT_ROUTE
};

}  // namespace

std::span<const RouteInfo> routes() { return kRoutes; }

}  // namespace flashrt
