// Package english keeps kubectl from unpacking its message catalogue, which
// costs half of its start-up; kubectl then speaks English.
//
// It is the one package with an init of effect, as kubectl asks for: its
// variables are translated while packages initialise, and Go initialises
// packages that are ready in the order of their import paths, so that this one
// comes before kubectl's. It may import nothing but kubectl's i18n.
package english

import "k8s.io/kubectl/pkg/util/i18n"

func init() {
	if err := i18n.SetLoadTranslationsFunc(func() error { return nil }); err != nil {
		panic(err)
	}
}
