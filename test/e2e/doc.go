// Package e2e runs the real binary in network namespaces of its own and uses it as people do.
package e2e
