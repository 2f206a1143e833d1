// Package apiserver serves the Kubernetes API over HTTP: it turns requests
// into calls of the registry and answers with bytes that the cache already holds.
//
// It may import registry, cache, client, kind, run and the Kubernetes
// libraries. Nothing but server imports it. Its invariant: an object that is
// in the cache is never encoded again for JSON or protobuf, and a list is
// never built whole in memory.
//
// # Decisions
//
// Compression. An answer is compressed only if it is over 128 KiB, the client
// accepts gzip, and the peer is not on loopback: there gzip of a list of 3,000
// pods would cost more than a hundred milliseconds to save a copy.
//
// Watch frames. A frame is a constant head, the entry's own encoding (made once,
// shared by all watchers) and a constant tail. Joining the three is one copy
// into the connection's buffer, so frames are not cached on their own.
//
// An idle watch costs a goroutine and a connection's stream: its buffer is taken
// from a pool while a batch of events is written, and given back.
//
// kubectl's two WebSocket protocols (KEP-4006) are translated to SPDY here, as
// upstream does by default, so an agent needs SPDY and the channel protocols only.
//
// Client certificates are verified once per connection, not once per request,
// and their expiry is checked on each request. An unknown certificate is an
// answer 401, not a failed handshake, as upstream.
//
// Anonymous requests reach health endpoints only; everything else is 401.
//
// OpenAPI is built when first asked for, for one group and version at a time,
// and only its compressed form is kept.
//
// Requests in flight are bounded by package fairness; at the bound the answer is 429 with Retry-After: 1. A request waits for
// its seat once its body is there, and gives it back when its answer begins, so that neither a client that does not send nor
// one that does not read holds a seat. Such a client loses its stream or connection after Config.WriteStall.
package apiserver
