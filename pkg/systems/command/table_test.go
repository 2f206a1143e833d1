package command

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTableFitsTerminal(t *testing.T) {
	const message = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate"
	printed := func(width int) string {
		var out strings.Builder
		require.NoError(t, printTable(&out, [][]string{
			{"TASK", "IMAGE?", "STATUS", "NODE", "EXIT", "CREATED?", "ERROR"},
			{"nightly-import", "busybox:1.36", "Pending", "-", "-", "118s", message},
			{"b", "busybox:1.36", "Completed", "-", "0", "3s", "-"},
		}, width))
		return out.String()
	}
	require.Equal(t, `TASK            IMAGE         STATUS     NODE  EXIT  CREATED  ERROR
nightly-import  busybox:1.36  Pending    -     -     118s     `+message+`
b               busybox:1.36  Completed  -     0     3s       -
`, printed(200), "a table that fits has all columns")
	require.Equal(t, `TASK            IMAGE         STATUS     EXIT  CREATED  ERROR
nightly-import  busybox:1.36  Pending    -     118s     0/1 nodes are available:
                                                        1 Insufficient cpu. no
                                                        new claims to deallocate
b               busybox:1.36  Completed  0     3s       -
`, printed(80), "the empty column is left out, the last one is wrapped")
	require.Equal(t, `TASK            IMAGE         STATUS     EXIT  CREATED
nightly-import  busybox:1.36  Pending    -     118s
    0/1 nodes are available: 1 Insufficient cpu. no new claims to
    deallocate
b               busybox:1.36  Completed  0     3s
`, printed(66), "without room for a last column, its texts stand below their rows")

	require.Equal(t, `TASK            STATUS     EXIT
nightly-import  Pending    -
    0/1 nodes are available: 1
    Insufficient cpu. no new claims to
    deallocate
b               Completed  0
`, printed(40), "minor columns are left out")
	require.Equal(t, `TASK            STATUS
nightly-import  Pending
    0/1 nodes are available:
    1 Insufficient cpu. no
    new claims to deallocate
b               Completed
    EXIT 0
`, printed(28), "other columns stand below their rows, too")

	var out strings.Builder
	require.NoError(t, printTable(&out, [][]string{
		{"RESOURCE", "CLUSTER", "FIELD", "CHANGE", "BY", "SEEN"},
		{"banner-c5-configmap-banner", "c5", "ConfigMap/shop/banner", "changed", "kubectl", "3s"},
	}, 60))
	require.Equal(t, "RESOURCE                    CLUSTER  FIELD\n"+
		"banner-c5-configmap-banner  c5       ConfigMap/shop/banner\n"+
		"    CHANGE changed; BY kubectl; SEEN 3s\n", out.String())

	out.Reset()
	require.NoError(t, printTable(&out, [][]string{
		{"RESOURCE", "STATE", "AGE?", "MESSAGE"}, {"banner-c5-configmap", "Synced", "12m", "-"},
	}, 30))
	require.Equal(t, "RESOURCE             STATE\nbanner-c5-configmap  Synced\n", out.String(), "the last column is minor")

	out.Reset()
	require.NoError(t, printTable(&out, [][]string{{"A", "B"}}, 5))
	require.Equal(t, "A\n", out.String(), "a table without rows")
}

func TestHang(t *testing.T) {
	const text = "port 53 is taken by pid 9, a resolver"
	require.Equal(t, "dns  - "+text+"\n", Hang("dns  - ", text, 0))
	require.Equal(t, "dns  - "+text+"\n", Hang("dns  - ", text, 80))
	require.Equal(t, "dns  - port 53 is taken by\n       pid 9, a resolver\n", Hang("dns  - ", text, 27))
	require.Equal(t, "dns  - "+text+"\n", Hang("dns  - ", text, 26), "there is no room for a column")
	require.Equal(t, "/a/path/that/is/longer/than/a/line\nis whole\n",
		Hang("", "/a/path/that/is/longer/than/a/line is whole", 20))
}
