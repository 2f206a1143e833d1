package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const greetingResource = `apiVersion: kontrol.coracle.dev/v1alpha1
kind: Resource
metadata: {name: greeting}
spec:
  clusterName: this
  mode: Report
  template: {apiVersion: v1, kind: ConfigMap, metadata: {name: greeting, namespace: default}, data: {hello: world}}
`

// TestKontrolTour follows an object of the hub's own cluster through the commands: create, drift, report, correct,
// roll back and adopt.
func TestKontrolTour(t *testing.T) {
	h := host.New(t)
	const rest = "127.0.0.1:8071"
	h.Run("start", "--rest-address="+rest, "--rest-insecure")
	value := func() string { return h.Ctl("get configmap greeting -o jsonpath={.data.hello}") }

	h.Run("kontrol", "clusters", "add", "this", "--local")
	h.Apply(greetingResource)
	require.Equal(t, "resource greeting is Synced (revision 1, generation 1)\n", h.Run("kontrol", "wait", "greeting"))
	require.Equal(t, "world", value())
	require.Regexp(t, `(?m)^this +True +v1\.\S+ +\(this one\) `, h.Run("kontrol", "clusters"))
	require.Empty(t, h.Run("kontrol", "diff", "greeting"), "exit code 0: applying it would change nothing")
	h.Run("kontrol", "drift")

	// Drift is reported with the field manager that caused it.
	h.Ctl(`patch configmap greeting --field-manager somebody -p {"data":{"hello":"drift"}}`)
	h.Run("kontrol", "wait", "greeting", "--for", "Drifted")
	out, code := exitCode(t, h, "kontrol", "drift")
	require.Equal(t, 1, code)
	require.Regexp(t, `(?m)^greeting +this +\.data\.hello +changed +"world" +"drift" +somebody `, out)
	out, code = exitCode(t, h, "kontrol", "diff", "greeting")
	require.Equal(t, 1, code)
	require.Contains(t, out, "-  hello: drift\n+  hello: world\n")
	require.Contains(t, h.Run("kontrol", "describe", "greeting"), "somebody")
	_, code = exitCode(t, h, "kontrol", "wait", "greeting", "--timeout", "1s")
	require.Equal(t, 1, code)

	// The mode Correct repairs the drift at once.
	h.Ctl(`patch kres greeting --type merge -p {"spec":{"mode":"Correct"}}`)
	h.Run("kontrol", "wait", "greeting")
	require.Equal(t, "world", value())

	// An edit and its rollback. The REST facade shows both.
	file := filepath.Join(h.Home, "greeting.yaml")
	require.NoError(t,
		os.WriteFile(file, []byte(strings.NewReplacer("world", "sea", "Report", "Correct").Replace(greetingResource)), 0o600))
	out, err := h.Try("ctl", "apply", "-f", file)
	require.NoError(t, err)
	require.Equal(t, "resource.kontrol.coracle.dev/greeting configured\n", out, "without a warning")
	h.Run("kontrol", "wait", "greeting")
	require.Equal(t, "sea", value())
	require.Regexp(t, `(?m)^3 +3 +present +\.data\.hello$`, h.Run("kontrol", "history", "greeting"))
	require.Equal(t, "resource greeting rolled back from revision 3 to 2 (generation 4)\n",
		h.Run("kontrol", "rollback", "greeting", "--to", "2"))
	h.Run("kontrol", "wait", "greeting")
	require.Equal(t, "world", value())
	body, err := h.Curl("http://" + rest + "/api/v1/resources?state=Synced&cluster=this")
	require.NoError(t, err)
	var list []struct {
		Name                 string
		Generation, Revision int64
		Applied              []struct{ Status string } `json:"applied_states"`
		Current              []struct {
			Version string `json:"k8s_resource_version"`
		} `json:"current_states"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &list), body)
	require.Len(t, list, 1)
	require.Equal(t, [2]int64{4, 2}, [2]int64{list[0].Generation, list[0].Revision})
	require.Equal(t, "Applied", list[0].Applied[0].Status)
	require.NotEmpty(t, list[0].Current[0].Version)

	// A Resource that needs approval waits for it, and a Resource outside its windows waits for the next one.
	h.Apply(strings.NewReplacer("{name: greeting", "{name: careful", "mode: Report", "approval: Manual").
		Replace(greetingResource))
	_, code = exitCode(t, h, "kontrol", "wait", "careful", "--timeout", "1s")
	require.Equal(t, 1, code)
	require.Eventually(t, func() bool {
		return strings.Contains(h.Run("kontrol", "describe", "careful"), "coracle kontrol approve careful")
	}, host.Patience, 50*time.Millisecond)
	require.Equal(t, "resource careful: revision 1 (generation 1) approved\n", h.Run("kontrol", "approve", "careful"))
	h.Run("kontrol", "wait", "careful")
	h.Ctl(`patch kres careful --type merge -p {"spec":{"approval":"None","windows":[{"kind":"Deny","schedule":"@hourly","duration":"2h"}],"template":{"data":{"hello":"later"}}}}`)
	h.Run("kontrol", "wait", "careful", "--for", "OutOfSync")
	denied := regexp.MustCompile("Waiting: SyncWindow .* denies changes")
	require.Eventually(t, func() bool {
		return denied.MatchString(h.Run("kontrol", "describe", "careful"))
	}, host.Patience, 50*time.Millisecond,
		"it is out of sync as soon as it is changed")
	require.Equal(t, "world", h.Ctl("get configmap careful -o jsonpath={.data.hello}"))

	// An existing object is adopted unchanged, and outlives its Resource.
	h.Ctl("create configmap found --from-literal=color=green")
	require.Contains(t, h.Run("kontrol", "adopt", "configmap/found", "--cluster", "this"), "color: green")
	require.Contains(t, h.Fails("kontrol", "describe", "this-default-configmap-found"), "there is no resource")
	h.Run("kontrol", "adopt", "configmap/found", "--cluster", "this", "--yes")
	h.Run("kontrol", "wait", "this-default-configmap-found")
	require.Contains(t, h.Fails("kontrol", "adopt", "configmap/found", "--cluster", "this", "--name", "again"),
		"has it already")
	h.Ctl("delete kres this-default-configmap-found greeting careful")
	require.Equal(t, "green", h.Ctl("get configmap found -o jsonpath={.data.color}"))
	require.Empty(t, h.Ctl("get configmap greeting --ignore-not-found -o name"), "its deletion policy is Delete")
	h.Run("kontrol", "clusters", "remove", "this")
}
