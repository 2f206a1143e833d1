package count

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	for want, got := range map[string]string{
		"0 objects": Of(0, "object"), "1 object": Of(1, "object"), "2 processes": Of(2, "process"),
		"1 index": Of(1, "index"), "3 indexes": Of(3, "index"), "-1 waves": Of(-1, "wave"),
	} {
		require.Equal(t, want, got)
	}
}
