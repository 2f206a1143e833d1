// Package robustness kills the process in the middle of its work, again and again, and checks that nothing acknowledged is lost:
// `make robustness`.
package robustness
