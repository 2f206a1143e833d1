// Package robustness kills the process repeatedly in the middle of its work and checks that no acknowledged write is
// lost: `make robustness`.
package robustness
