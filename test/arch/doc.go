// Package arch tests the rules for imports, shape, comments and documents of this repository.
package arch
