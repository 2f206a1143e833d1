// Package apiserver serves the Kubernetes API over HTTP: it maps requests to calls of the registry and responds with
// bytes that the cache has already encoded.
//
// Only server imports it. Its invariant: an object in the cache is never encoded again for JSON or protobuf, and a
// list is never built whole in memory.
//
// # Decisions
//
// Compression. A response is compressed only if it is larger than 128 KiB, the client accepts gzip and its address is
// not a loopback address: there, compressing a list of 3,000 pods would take more than a hundred milliseconds to save a
// copy. A watch that replaces a list (KEP-3157) is compressed whole, as upstream, and holds no compressor
// while it is idle.
//
// Watch frames. A frame is a constant head, the entry's encoding (made once, shared by all watchers) and a constant
// tail. Joining the three is one copy into the connection's buffer, so frames are not cached.
//
// An idle watch costs a goroutine and an HTTP/2 stream: its buffer comes from a pool and is held only while a batch of
// events is written.
//
// kubectl's two WebSocket protocols (KEP-4006) are translated to SPDY here, as upstream does by default, so an agent
// needs only SPDY and the channel protocols.
//
// Client certificates are verified once per connection, not once per request, and their expiry is checked on each
// request. As upstream, an unknown certificate gets a 401, not a failed handshake.
//
// Anonymous requests reach health endpoints only; everything else is 401.
//
// OpenAPI documents are built on first use, one group and version at a time, and only their compressed form is kept.
//
// Requests in flight are limited by package fairness; above the limit the response is 429 with Retry-After: 1. A
// request waits for its seat after its body has been read, and releases it when its response begins, so that a client
// that does not send or does not read holds no seat. Such a client loses its stream or connection after
// Config.WriteStall.
package apiserver
