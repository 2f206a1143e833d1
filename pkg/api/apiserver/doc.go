// Package apiserver serves the Kubernetes API over HTTP: it maps requests to registry calls and responds with bytes
// that the cache has already encoded. Its invariant: it never encodes a cached object again for JSON or protobuf,
// and never builds a whole list in memory.
//
// It compresses responses over 128 KiB for clients that accept gzip and are not on this machine, where compressing a
// list of 3,000 pods takes over 100 ms to save a copy. It compresses a watch that replaces a list (KEP-3157), too.
// An idle watch costs a goroutine and an HTTP/2 stream, but no buffer and no compressor. It translates kubectl's
// WebSocket protocols (KEP-4006) to SPDY, so agents need only SPDY and the channel protocols. It verifies a client
// certificate once per connection, and its expiry on each request; an unknown one gets a 401, not a failed
// handshake.
//
// Package fairness limits the requests in flight (429 with Retry-After: 1 above the limit). A request takes its seat
// after its body has arrived and releases it when its response begins, so clients that do not send or read hold no
// seat. They lose their stream or connection after Config.WriteStall.
package apiserver
