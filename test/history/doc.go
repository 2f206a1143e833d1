// Package history checks what clients of an API server saw against what its writers did: lists, watches from a
// revision, watches that begin with the state, selectors. Everything that anybody saw must fit one history of changes,
// and every client must have seen all of its part of it, in order, once. It is to watches what porcupine is to
// registers; with one writer for each key, a history is found without search.
//
// It imports nothing of Coracle, so that it can check any API server; test/robustness has the clients. Its invariant: a
// history that is accepted has no event that a client missed or saw twice before the last revision that the client was
// told.
package history
