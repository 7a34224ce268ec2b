// The searches among double positions.

#include "knn_search.cuh"

template void jztree::search(Queue&, const Problem<double>&, const Extent<double>&);
