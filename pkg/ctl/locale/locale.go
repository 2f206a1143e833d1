// Package locale lets kubectl unpack its message catalogue only where it speaks another language than English: unpacking costs
// half of kubectl's start-up.
//
// It is the one package with an init of effect, as kubectl asks for: its
// variables are translated while packages initialise, and Go initialises
// packages that are ready in the order of their import paths, so that this one
// comes before kubectl's. It may import nothing but kubectl's i18n.
package locale

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/kubectl/pkg/util/i18n"
)

func init() {
	load := func() error { return nil }
	if isKubectl(os.Args) && translated(os.Getenv) {
		load = func() error { return i18n.LoadTranslations("kubectl", nil) }
	}
	if err := i18n.SetLoadTranslationsFunc(load); err != nil {
		panic(err)
	}
}

// languages are those into which kubectl is translated.
var languages = []string{"de_DE", "fr_FR", "it_IT", "ja_JP", "ko_KR", "pt_BR", "zh_CN", "zh_TW"}

// translated reports whether the user's locale is one of languages. kubectl reads the same variables in the same order, and
// wants an encoding after the language.
func translated(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		if value := getenv(name); value != "" {
			language, encoding, _ := strings.Cut(value, ".")
			return encoding != "" && slices.Contains(languages, language)
		}
	}
	return false
}

// isKubectl reports whether this process was started as kubectl: everything else Coracle prints is English.
func isKubectl(args []string) bool {
	switch {
	case len(args) == 0:
		return false
	case filepath.Base(args[0]) == "kubectl":
		return true
	}
	return len(args) > 1 && args[1] == "ctl"
}
