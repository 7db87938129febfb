// One row by weights of 1 to 4 bits through tables of activations, after T-MAC (Wei et al., EuroSys 2025), for AVX-512 VBMI and VNNI.
//
// A table holds the sums of every subset of four activations, as bytes with one scale for each group of k, made positive by 128.
// Bit b of four weights names a sum; 64 bytes are four tables, so that a permutation looks up four sums of 16 outputs each, and a
// product of bytes adds them to 32 bits, times 2^b. Both the making of tables and the look-ups are what a call takes.
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

enum { OUTPUTS = 16, SPAN = 16, BLOCKS = 4 };

static float make(const float *x, long group, uint8_t *tables, float *sum) {
    float largest = 1e-30f, total = 0;
    for (long k = 0; k < group; k += 4) {
        float up = 0, down = 0;
        for (int i = 0; i < 4; i++) up += fmaxf(x[k + i], 0), down += fmaxf(-x[k + i], 0), total += x[k + i];
        largest = fmaxf(largest, fmaxf(up, down));
    }
    float scale = largest / 127, inverse = 127 / largest;
    for (long k = 0; k < group; k += 4) {
        __m512 sums = _mm512_maskz_mov_ps(0xAAAA, _mm512_set1_ps(x[k]));
        sums = _mm512_mask_add_ps(sums, 0xCCCC, sums, _mm512_set1_ps(x[k + 1]));
        sums = _mm512_mask_add_ps(sums, 0xF0F0, sums, _mm512_set1_ps(x[k + 2]));
        sums = _mm512_mask_add_ps(sums, 0xFF00, sums, _mm512_set1_ps(x[k + 3]));
        __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(sums, _mm512_set1_ps(inverse)));
        _mm_storeu_si128((__m128i *)(tables + k * 4), _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, _mm512_set1_epi32(128))));
    }
    *sum = total;
    return scale;
}

// codes: [n / 64][k / group][bits][group / 32][4][64]; scales: [n / 64][k / group][64]; room: 4 k + 8 k / group bytes.
void product(const float *x, const uint8_t *codes, const float *scales, float *y, long n, long k, long group, long bits,
             uint8_t *room) {
    long groups = k / group, steps = group / (2 * SPAN);
    float *table_scale = (float *)(room + 4 * k), *less = table_scale + groups;
    for (long g = 0; g < groups; g++) {
        float sum;
        table_scale[g] = make(x + g * group, group, room + g * group * 4, &sum);
        less[g] = 128.0f * ((1 << bits) - 1) * (group / 4) + (1 << (bits - 1)) * sum / table_scale[g];
    }
    const __m512i low = _mm512_set1_epi8(15), place = _mm512_set1_epi32(0x30201000);
    for (long o = 0; o < n / (OUTPUTS * BLOCKS); o++) {
        __m512 total[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) total[i] = _mm512_setzero_ps();
        for (long g = 0; g < groups; g++) {
            __m512i sums[2 * BLOCKS];
            for (int i = 0; i < 2 * BLOCKS; i++) sums[i] = _mm512_setzero_si512();
            for (long b = 0; b < bits; b++) {
                const __m512i weight = _mm512_set1_epi8(1 << b);
                const uint8_t *table = room + g * group * 4;
                for (long s = 0; s < steps; s++, codes += 64 * BLOCKS, table += 128) {
                    __m512i near = _mm512_loadu_si512(table), far = _mm512_loadu_si512(table + 64);
#pragma GCC unroll 4
                    for (int i = 0; i < BLOCKS; i++) {
                        __m512i c = _mm512_loadu_si512(codes + 64 * i);
                        __m512i first = _mm512_ternarylogic_epi32(c, low, place, 0xEA);
                        __m512i second = _mm512_ternarylogic_epi32(_mm512_srli_epi16(c, 4), low, place, 0xEA);
                        sums[2 * i] = _mm512_dpbusd_epi32(sums[2 * i], _mm512_permutexvar_epi8(first, near), weight);
                        sums[2 * i + 1] = _mm512_dpbusd_epi32(sums[2 * i + 1], _mm512_permutexvar_epi8(second, far), weight);
                    }
                }
            }
            for (int i = 0; i < BLOCKS; i++, scales += OUTPUTS) {
                __m512 found = _mm512_cvtepi32_ps(_mm512_add_epi32(sums[2 * i], sums[2 * i + 1]));
                found = _mm512_sub_ps(found, _mm512_set1_ps(less[g]));
                total[i] = _mm512_fmadd_ps(found, _mm512_mul_ps(_mm512_loadu_ps(scales), _mm512_set1_ps(table_scale[g])), total[i]);
            }
        }
        for (int i = 0; i < BLOCKS; i++) _mm512_storeu_ps(y + (o * BLOCKS + i) * OUTPUTS, total[i]);
    }
}
