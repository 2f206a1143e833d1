package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

const policyPods = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "mkdir /w; echo hello > /w/index.html; httpd -h /w -p 8081; exec httpd -f -h /w -p 8080"]
    ports: [{name: http, containerPort: 8080}]
    readinessProbe: {httpGet: {port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Pod
metadata: {name: near, labels: {role: friend}}
spec: {nodeName: %[1]s, terminationGracePeriodSeconds: 0, containers: [{name: c, image: "busybox:1.36", command: [sleep, "100000"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: far, labels: {role: friend}}
spec: {nodeName: %[2]s, terminationGracePeriodSeconds: 0, containers: [{name: c, image: "busybox:1.36", command: [sleep, "100000"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stranger, labels: {role: stranger}}
spec: {nodeName: %[2]s, terminationGracePeriodSeconds: 0, containers: [{name: c, image: "busybox:1.36", command: [sleep, "100000"]}]}
`

const allowFriends = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}], ports: [{port: http}]}]
`

const denyAll = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {}, policyTypes: [%s]}
`

// TestNetworkPolicies checks policies between pods of two nodes with named ports, IP blocks and both directions.
// They apply from a new pod's first packet and outlive the process. Without policies there is no table.
func TestNetworkPolicies(t *testing.T) {
	h := host.New(t)
	other := h.Beside()
	h.Start()
	agent := startAgent(t, other, joinWords(t, h))
	defer agent.end()
	h.Ctl("wait node/" + other.Name + " --for=condition=Ready --timeout=120s")
	other.Load()
	tables := func(on *host.Host) string {
		var names []string
		require.NoError(t, on.InNetwork(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			all, err := c.ListTables()
			for _, table := range all {
				names = append(names, table.Name)
			}
			return err
		}))
		return strings.Join(names, " ")
	}
	require.NotContains(t, tables(h), "_policy")
	h.Apply(fmt.Sprintf(policyPods, h.Name, other.Name))
	h.Ctl("wait pod --all --for=condition=Ready --timeout=120s")
	web := h.Ctl("get pod web -o jsonpath={.status.podIP}")
	try := func(pod, url string) error {
		out, err := h.Try("ctl", "exec", pod, "--", "wget", "-q", "-O-", url)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %s", err, out)
		case !strings.Contains(out, "hello"):
			return fmt.Errorf("%s answered %q", url, out)
		}
		return nil
	}
	url := "http://" + web + ":8080/"
	eventually := func(reaches bool, pod, url string) {
		t.Helper()
		require.Eventually(t, func() bool {
			return (try(pod, url) == nil) == reaches
		}, host.Patience, 50*time.Millisecond, "%s to %s: %v", pod, url, reaches)
	}
	for _, pod := range []string{"near", "far", "stranger"} {
		eventually(true, pod, url)
	}

	h.Apply(fmt.Sprintf(denyAll, "Ingress"))
	for _, pod := range []string{"near", "far", "stranger"} {
		eventually(false, pod, url)
	}
	require.ErrorContains(t, try("far", url), "No route to host", "it is refused, not dropped")
	h.Apply(allowFriends)
	eventually(true, "near", url)
	eventually(true, "far", url)
	eventually(true, "far", "http://web.default.svc.cluster.local/")
	require.NoError(t, try("web", url), "a pod reaches itself")
	require.NoError(t, try("web", "http://web.default.svc.cluster.local/"), "also through its service")
	require.Error(t, try("far", "http://"+web+":8081/"), "another port")
	require.Error(t, try("stranger", url))
	h.Ctl("label pod stranger role=friend --overwrite")
	eventually(true, "stranger", url)
	h.Ctl("label pod stranger role=stranger --overwrite")
	eventually(false, "stranger", url)
	require.Equal(t, "True", h.Ctl(`get pod web -o jsonpath={.status.conditions[?(@.type=="Ready")].status}`),
		"probes of its node are allowed")

	// Egress by IP block and port range. A new pod is restricted from its first packet on.
	h.Apply(fmt.Sprintf(denyAll, "Ingress,Egress"))
	eventually(false, "near", url)
	h.Apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out}
spec:
  podSelector: {matchLabels: {role: friend}}
  policyTypes: [Egress]
  egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [192.0.2.0/24]}}], ports: [{port: 8000, endPort: 8080}]}]
`)
	eventually(true, "near", url)
	eventually(true, "far", url)
	for _, node := range []string{h.Name, other.Name} {
		h.Apply(fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"new-%[1]s"},"spec":{"nodeName":"%[1]s","restartPolicy":"Never","containers":[{"name":"c","image":"busybox:1.36",
			"command":["sh","-c","wget -q -O- %[2]s && exit 9; exit 0"]}]}}`, node, url))
		h.Ctl("wait pod/new-" + node + " --for=jsonpath={.status.phase}=Succeeded --timeout=120s")
	}

	// The rules outlive the process.
	h.Kill()
	require.Contains(t, tables(h), "_policy")
	h.Start()
	h.Ctl("wait pod/web --for=condition=Ready --timeout=120s")
	eventually(true, "far", url)
	require.Error(t, try("stranger", url))

	// A firewall's reload flushes all tables. Policies and services must be restored at once.
	before := strings.Fields(tables(h))
	out, err := h.Command(t.Context(), "nft", "flush", "ruleset").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Eventually(t, func() bool {
		return len(strings.Fields(tables(h))) == len(before)
	}, host.Patience, 10*time.Millisecond)
	eventually(true, "near", url)
	eventually(true, "near", "http://web.default.svc.cluster.local/")
	require.Error(t, try("stranger", url))

	h.Ctl("delete networkpolicies --all")
	eventually(true, "stranger", url)
	for _, on := range []*host.Host{h, other} {
		require.Eventually(t, func() bool {
			return !strings.Contains(tables(on), "_policy")
		}, host.Patience, 50*time.Millisecond)
	}
}
