// Package arch holds the rules of who may import whom, as tests.
package arch
