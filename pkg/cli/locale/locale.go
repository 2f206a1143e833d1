// Package locale makes kubectl load its message catalogue only for languages other than English, since loading is
// half of kubectl's start-up time.
//
// It is the only package whose init has an effect. kubectl translates its variables during package initialisation,
// so this package must come first: Go initialises packages that are ready in the order of their import paths.
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

var languages = []string{"de_DE", "fr_FR", "it_IT", "ja_JP", "ko_KR", "pt_BR", "zh_CN", "zh_TW"}

// translated reports whether the user's locale is one of languages. Like kubectl, it reads these variables in this
// order and requires an encoding after the language.
func translated(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		if value := getenv(name); value != "" {
			language, encoding, _ := strings.Cut(value, ".")
			return encoding != "" && slices.Contains(languages, language)
		}
	}
	return false
}

// isKubectl reports whether this process runs kubectl. All other output of Coracle is in English.
func isKubectl(args []string) bool {
	switch {
	case len(args) == 0:
		return false
	case filepath.Base(args[0]) == "kubectl":
		return true
	}
	return len(args) > 1 && args[1] == "ctl"
}
