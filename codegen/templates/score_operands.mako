  ScoreOperands operands;
  operands.mask = mask;
  operands.tile_map = tile_map;
  operands.q_segments = q_segments;
  operands.k_segments = k_segments;
  operands.q_bounds = q_bounds;
  operands.k_bounds = k_bounds;
  operands.row_diagonals = row_diagonals;
  operands.alibi = alibi;
