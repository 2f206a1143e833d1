package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const objectsManifest = `
  replicas: 0
  delivery: {promise: AtLeastOnce}
  triggers:
  - objects: {apiVersion: v1, kind: ConfigMap, selector: {matchLabels: {app: shop}}, changes: [Added, Modified]}
`

const shopConfig = `
apiVersion: v1
kind: ConfigMap
metadata: {name: %s, labels: {app: %s}}
data: {price: %q}
`

// TestWorkerObjects sends the changes of ConfigMaps to a worker, which needs a role for them, and kills the server:
// each change comes once, in order.
func TestWorkerObjects(t *testing.T) {
	h := host.New(t)
	h.Start()
	h.Apply(fmt.Sprintf(shopConfig, "before", "shop", "0"))
	h.Apply(fmt.Sprintf(shell, "prices", "cat /tmp/message", objectsManifest))
	h.Shows("may not list configmaps", "get worker prices -o jsonpath={.status.triggers[0].failure}")
	h.Ctl("create role prices --verb=list,watch --resource=configmaps")
	h.Ctl("create rolebinding prices --role=prices --serviceaccount=default:default")
	h.Ctl("wait worker/prices --for=jsonpath={.status.triggers[0].objects.resourceVersion} --timeout=120s")
	h.Apply(fmt.Sprintf(shopConfig, "tea", "shop", "1"))
	h.Apply(fmt.Sprintf(shopConfig, "coal", "mine", "1"))
	h.Apply(fmt.Sprintf(shopConfig, "tea", "shop", "2"))
	h.Kill()
	h.Run("start")
	h.Apply(fmt.Sprintf(shopConfig, "tea", "shop", "3"))
	h.Ctl("delete configmap tea")
	h.Apply(fmt.Sprintf(shopConfig, "salt", "shop", "4"))
	h.Ctl("wait worker/prices --for=jsonpath={.status.depth}=4 --timeout=120s")
	var got []string
	for _, m := range queued(t, h, "prices", "list") {
		var full struct{ Payload []byte }
		require.NoError(t, json.Unmarshal([]byte(h.Run("queue", "prices", "show", m.ID, "-o", "json")), &full))
		var c struct {
			Type   string
			Object struct {
				Metadata struct{ Name string }
				Data     map[string]string
			}
		}
		require.NoError(t, json.Unmarshal(full.Payload, &c))
		got = append(got, c.Type+" "+c.Object.Metadata.Name+" "+c.Object.Data["price"])
	}
	require.Equal(t, []string{"ADDED tea 1", "MODIFIED tea 2", "MODIFIED tea 3", "ADDED salt 4"}, got)
	h.Ctl("scale worker prices --replicas=1")
	h.Ctl("wait worker/prices --for=jsonpath={.status.depth}=0 --timeout=120s")
}
