package target

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestKubeconfigsAreBounded: the writer of a Secret controls the kubeconfig. Aliases that expand to gigabytes must
// be refused before their expansion.
func TestKubeconfigsAreBounded(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := byte('b'); c < 'n'; c++ {
		former := strings.TrimSuffix(strings.Repeat("*"+string(c-1)+",", 10), ",")
		bomb += string(c) + ": &" + string(c) + " [" + former + "]\n"
	}
	began := time.Now()
	_, err := ParseKubeconfig([]byte("apiVersion: v1\nkind: Config\n" + bomb))
	require.ErrorContains(t, err, "YAML")
	require.Less(t, time.Since(began), 20*time.Second)
}
