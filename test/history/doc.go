// Package history checks what the clients of an API server saw against what its writers did. It covers lists,
// watches from a revision, watches that begin with the state, and selectors. All observations must fit one history
// of changes, and each client must have seen its part of that history completely, in order and once. Each key has
// one writer, so the history follows without a search.
//
// It imports no package of Coracle, so it can check any API server; test/robustness has the clients. Its invariant: in
// an accepted history no client missed an event or saw one twice, up to the last revision that the client received.
package history
