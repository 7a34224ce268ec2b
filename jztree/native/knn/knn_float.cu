// The searches among float positions.

#include "knn_search.cuh"

template void jztree::search(Queue&, const Problem<float>&, const Extent<float>&);
