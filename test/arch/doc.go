// Package arch tests the import rules.
package arch
