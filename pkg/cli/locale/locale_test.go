package locale

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/kubectl/pkg/util/i18n"
)

func TestTranslated(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want bool
	}{
		{nil, false},
		{map[string]string{"LANG": "C"}, false},
		{map[string]string{"LANG": "C.UTF-8"}, false},
		{map[string]string{"LANG": "en_US.UTF-8"}, false},
		{map[string]string{"LANG": "de_DE"}, false},
		{map[string]string{"LANG": "de_DE.UTF-8"}, true},
		{map[string]string{"LANG": "de_DE.UTF-8", "LC_MESSAGES": "C.UTF-8"}, false},
		{map[string]string{"LANG": "C", "LC_ALL": "ja_JP.UTF-8"}, true},
		{map[string]string{"LANG": "xx_XX.UTF-8"}, false},
	} {
		require.Equal(t, c.want, translated(func(name string) string { return c.env[name] }), "%v", c.env)
	}
}

func TestIsKubectl(t *testing.T) {
	require.True(t, isKubectl([]string{"/usr/local/bin/kubectl", "get"}))
	require.True(t, isKubectl([]string{"coracle", "ctl", "get"}))
	require.False(t, isKubectl([]string{"coracle", "server"}))
	require.False(t, isKubectl(nil))
}

// TestLanguagesExist checks that each language has translations.
func TestLanguagesExist(t *testing.T) {
	const text = "Display one or many resources"
	different := 0
	for _, l := range languages {
		require.NoError(t, i18n.LoadTranslations("kubectl", func() string { return l }))
		if i18n.T(text) != text {
			different++
		}
	}
	require.GreaterOrEqual(t, different, 5, "the others translate other texts")
}
