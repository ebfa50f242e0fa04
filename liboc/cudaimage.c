/* SPDX-License-Identifier: MIT */
/*
 * Module images. The driver is given no length: it takes a cubin's (ELF) and a fatbin's from their headers, and reads
 * PTX up to its NUL. What would make it read past the image is refused or mended here.
 */
#include "config.h"

#include "liboc/cudacall.h"

#include <inttypes.h>
#include <string.h>

#include "rcu/error.h"
#include "rcu/mem.h"

static uint64_t number(const unsigned char *p, size_t bytes) {
  uint64_t v = 0;
  while (bytes-- > 0) v = v << 8 | p[bytes];
  return v;
}

static bool fits(uint64_t offset, uint64_t size, size_t bytes) {
  return offset <= bytes && size <= bytes - offset;
}

static oc_status truncated(const char *what, size_t bytes) {
  return oci_error(OC_E_INVALID, "the image of %zu bytes begins as a %s, but that would be longer", bytes, what);
}

/* ---- cubin: a 64-bit little-endian ELF ---- */

enum { ELF_HEADER = 64, ELF_SEGMENT = 56, ELF_SECTION = 64, ELF_NO_BITS = 8 };

static bool sections_fit(const unsigned char *p, size_t bytes, uint64_t at, uint64_t count, uint64_t each) {
  for (uint64_t i = 0; i < count; i++) {
    const unsigned char *s = p + at + i * each;
    if (number(s + 4, 4) != ELF_NO_BITS && !fits(number(s + 24, 8), number(s + 32, 8), bytes)) return false;
  }
  return true;
}

static oc_status check_elf(const unsigned char *p, size_t bytes) {
  if (bytes < ELF_HEADER) return truncated("cubin", bytes);
  if (p[4] != 2 || p[5] != 1)
    return oci_error(OC_E_INVALID, "the image of %zu bytes is an ELF, but no cubin: that is 64-bit and little-endian", bytes);
  uint64_t segments = number(p + 32, 8), sections = number(p + 40, 8);
  uint64_t segment_bytes = number(p + 54, 2), segment_count = number(p + 56, 2);
  uint64_t section_bytes = number(p + 58, 2), section_count = number(p + 60, 2);
  /* The driver may take them to be of the format's size. */
  if ((segment_count && segment_bytes < ELF_SEGMENT) || (section_count && section_bytes < ELF_SECTION))
    return oci_error(OC_E_INVALID, "the image of %zu bytes begins as a cubin, but its headers are of %u and %u bytes, not %d and %d",
                     bytes, (unsigned)segment_bytes, (unsigned)section_bytes, ELF_SEGMENT, ELF_SECTION);
  if (!fits(segments, segment_count * segment_bytes, bytes) || !fits(sections, section_count * section_bytes, bytes) ||
      !sections_fit(p, bytes, sections, section_count, section_bytes))
    return truncated("cubin", bytes);
  return OC_OK;
}

/* ---- fatbin: magic, version, the header's own size, the size of all that follows it ---- */

#define FATBIN_MAGIC 0xBA55ED50u
enum { FATBIN_HEADER = 16 };

static oc_status check_fatbin(const unsigned char *p, size_t bytes) {
  if (bytes < FATBIN_HEADER || !fits(number(p + 6, 2), number(p + 8, 8), bytes)) return truncated("fatbin", bytes);
  return OC_OK;
}

/* ---- PTX: text ---- */

static oc_status end_text(const void *image, size_t bytes, const void **out, char **copy) {
  *out = image;
  if (memchr(image, 0, bytes)) return OC_OK;
  char *text = oci_alloc(NULL, bytes + 1);   /* SIZE_MAX bytes without a NUL are in no memory */
  if (!text) return oci_error(OC_E_HOST_NOMEM, "no host memory to end %zu bytes of PTX with a NUL", bytes);
  memcpy(text, image, bytes);
  *out = *copy = text;
  return OC_OK;
}

oc_status oci_cuda_image(const void *image, size_t bytes, const void **out, char **copy) {
  const unsigned char *p = image;
  *out = image;
  *copy = NULL;
  if (!image || !bytes) return oci_error(OC_E_INVALID, "the module image is %s", image ? "empty" : "NULL");
  if (bytes >= 4 && memcmp(p, "\177ELF", 4) == 0) return check_elf(p, bytes);
  if (bytes >= 4 && number(p, 4) == FATBIN_MAGIC) return check_fatbin(p, bytes);
  return end_text(image, bytes, out, copy);
}
