/* DP-FedAvg of a multinomial regression as a C programmer would write it: what benchmarks.federated compares with.
 *
 * For each client: minibatch gradient descent from `start` over its rows, in their order; the difference is clipped in
 * L2 and added to `sum`. Products keep their tiles in vector registers. Only for comparison: nothing of the platform
 * runs it.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define TILE 5
#define VECTORS 4
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
static inline float sum_of(vec v) { float t = 0; for (int i = 0; i < LANES; i++) t += v[i]; return t; }
static inline __attribute__((always_inline)) void dots(const float **x, const float *w, int p, int outputs, float *z, int ne, int no) {
  vec acc[TILE][TILE] = {0};
  for (int j = 0; j < p; j += LANES) {
    vec a[TILE], b[TILE];
    for (int e = 0; e < ne; e++) a[e] = *(const vec *)(x[e] + j);
    for (int o = 0; o < no; o++) b[o] = *(const vec *)(w + o * p + j);
    for (int e = 0; e < ne; e++) for (int o = 0; o < no; o++) acc[e][o] += a[e] * b[o];
  }
  for (int e = 0; e < ne; e++) for (int o = 0; o < no; o++) z[e * outputs + o] = sum_of(acc[e][o]);
}
static inline __attribute__((always_inline)) void outer(const float **x, const float *a, int p, int outputs, float *w, int j, int n, int no, int nv) {
  vec acc[TILE][VECTORS];
  for (int o = 0; o < no; o++) for (int v = 0; v < nv; v++) acc[o][v] = *(vec *)(w + o * p + j + v * LANES);
  for (int e = 0; e < n; e++) {
    vec b[VECTORS];
    for (int v = 0; v < nv; v++) b[v] = *(const vec *)(x[e] + j + v * LANES);
    for (int o = 0; o < no; o++) { float f = a[e * outputs + o]; for (int v = 0; v < nv; v++) acc[o][v] += f * b[v]; }
  }
  for (int o = 0; o < no; o++) for (int v = 0; v < nv; v++) *(vec *)(w + o * p + j + v * LANES) = acc[o][v];
}
static void client(const float *x, const float *y, const int64_t *rows, int n, int p, int outputs, int batch, float rate, float *w) {
  float *bias = w + p * outputs, z[64 * 64];
  const float *at[64];
  for (int s = 0; s < n; s += batch) {
    int k = n - s < batch ? n - s : batch;
    for (int e = 0; e < k; e++) at[e] = x + rows[s + e] * p;
    for (int e = 0; e < k;) {
      int ne = e + TILE <= k ? TILE : 1;
      for (int o = 0; o < outputs;) {
        int no = o + TILE <= outputs ? TILE : 1;
        float *to = z + e * outputs + o; const float *wo = w + o * p;
        if (ne == TILE && no == TILE) dots(at + e, wo, p, outputs, to, TILE, TILE);
        else if (ne == TILE) dots(at + e, wo, p, outputs, to, TILE, 1);
        else if (no == TILE) dots(at + e, wo, p, outputs, to, 1, TILE);
        else dots(at + e, wo, p, outputs, to, 1, 1);
        o += no;
      }
      e += ne;
    }
    for (int e = 0; e < k; e++) {
      float *r = z + e * outputs, top = -INFINITY, total = 0;
      for (int o = 0; o < outputs; o++) { r[o] += bias[o]; if (r[o] > top) top = r[o]; }
      for (int o = 0; o < outputs; o++) { r[o] = expf(r[o] - top); total += r[o]; }
      for (int o = 0; o < outputs; o++) r[o] = -rate / k * (r[o] / total - (o == y[rows[s + e]]));
    }
    for (int e = 0; e < k; e++) for (int o = 0; o < outputs; o++) bias[o] += z[e * outputs + o];
    for (int j = 0; j < p;) {
      int nv = j + VECTORS * LANES <= p ? VECTORS : 1;
      for (int o = 0; o < outputs;) {
        int no = o + TILE <= outputs ? TILE : 1;
        if (nv == VECTORS && no == TILE) outer(at, z + o, p, outputs, w + o * p, j, k, TILE, VECTORS);
        else if (no == TILE) outer(at, z + o, p, outputs, w + o * p, j, k, TILE, 1);
        else if (nv == VECTORS) outer(at, z + o, p, outputs, w + o * p, j, k, 1, VECTORS);
        else outer(at, z + o, p, outputs, w + o * p, j, k, 1, 1);
        o += no;
      }
      j += nv * LANES;
    }
  }
}
void train(const float *x, const float *y, const int64_t *rows, int n, int clients, int p, int outputs, int batch, float rate, float clip, const float *start, float *w, float *sum) {
  int size = (p + 1) * outputs;
  for (int c = 0; c < clients; c++) {
    memcpy(w, start, 4 * size);
    client(x, y, rows + (int64_t)c * n, n, p, outputs, batch, rate, w);
    float squares = 0;
    for (int j = 0; j < size; j++) { w[j] -= start[j]; squares += w[j] * w[j]; }
    float length = sqrtf(squares), factor = length > clip ? clip / length : 1;
    for (int j = 0; j < size; j++) sum[j] += factor * w[j];
  }
}
