/* SPDX-License-Identifier: MIT */
/*
 * USDT probes of provider `liboc`: an instruction that does nothing until a tracer asks for it (doc/probes.md). Built
 * in where configure found sys/sdt.h.
 */
#ifndef OCI_LIBOC_PROBE_H
#define OCI_LIBOC_PROBE_H

#ifdef HAVE_SDT
#include <sys/sdt.h>
#define PROBE1(name, a) DTRACE_PROBE1(liboc, name, a)
#define PROBE2(name, a, b) DTRACE_PROBE2(liboc, name, a, b)
#define PROBE3(name, a, b, c) DTRACE_PROBE3(liboc, name, a, b, c)
#define PROBE4(name, a, b, c, d) DTRACE_PROBE4(liboc, name, a, b, c, d)
#define PROBE5(name, a, b, c, d, e) DTRACE_PROBE5(liboc, name, a, b, c, d, e)
#else
#define PROBE1(name, a) ((void)(a))
#define PROBE2(name, a, b) ((void)(a), (void)(b))
#define PROBE3(name, a, b, c) ((void)(a), (void)(b), (void)(c))
#define PROBE4(name, a, b, c, d) ((void)(a), (void)(b), (void)(c), (void)(d))
#define PROBE5(name, a, b, c, d, e) ((void)(a), (void)(b), (void)(c), (void)(d), (void)(e))
#endif

#endif
