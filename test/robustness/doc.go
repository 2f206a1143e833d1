// Package robustness kills the process repeatedly while it works, and checks that no acknowledged write is lost and
// that watches miss nothing: `make robustness`.
package robustness
