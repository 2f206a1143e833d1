package upstream_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/test/host"
	"github.com/coracle-dev/coracle/test/upstream"
)

// world is all objects that an API server serves in stable versions, by resource, namespace and name.
type world map[string]*unstructured.Unstructured

// kinds returns the stored kinds with a stable version, and whether each is namespaced. It skips Coracle's own
// kinds, which have none, and snapshots, which are custom resources upstream whose definitions are missing there.
func kinds(t *testing.T, config *rest.Config) map[schema.GroupVersionResource]bool {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(config)
	require.NoError(t, err)
	_, lists, err := d.ServerGroupsAndResources()
	require.NoError(t, err)
	namespaced := map[schema.GroupVersionResource]bool{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		require.NoError(t, err)
		if !stable.MatchString(gv.Version) || gv.Group == "metrics.k8s.io" ||
			strings.HasSuffix(gv.Group, "snapshot.storage.k8s.io") {
			continue
		}
		for _, r := range list.APIResources {
			if !strings.Contains(r.Name, "/") && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") {
				namespaced[gv.WithResource(r.Name)] = r.Namespaced
			}
		}
	}
	return namespaced
}

var stable = regexp.MustCompile(`^v\d+$`)

func read(t *testing.T, config *rest.Config, all map[schema.GroupVersionResource]bool) world {
	t.Helper()
	api, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	w := world{}
	for gvr := range all {
		list, err := api.Resource(gvr).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err, "%s", gvr)
		for i := range list.Items {
			o := &list.Items[i]
			w[fmt.Sprintf("%s %s/%s", gvr.GroupVersion().WithResource(gvr.Resource).String(), o.GetNamespace(), o.GetName())] = o
		}
	}
	return w
}

func (w world) newest(t *testing.T) (rev int64) {
	t.Helper()
	for _, o := range w {
		n, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
		require.NoError(t, err)
		rev = max(rev, n)
	}
	return rev
}

// rewritten matches objects that a server writes for itself when it starts or stops: its identity, its address,
// repairs, and the groups that it serves.
var rewritten = regexp.MustCompile(
	`Resource=(leases kube-system/apiserver-|configmaps kube-system/kube-apiserver-legacy-service-account-token-tracking$|(endpoints|endpointslices) default/kubernetes$|events |apiservices /(v1alpha1\.(\w+\.coracle\.dev|buildbarn\.io)|v1beta1\.scheduling\.k8s\.io|v1\.(group)?snapshot\.storage\.k8s\.io)$)`)

// same fails for each object that differs, except for objects that the second server wrote for itself.
func same(t *testing.T, before, after world) {
	t.Helper()
	was := before.newest(t)
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	equal := 0
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		old, now := before[key], after[key]
		switch {
		case old == nil && rewritten.MatchString(key), now == nil && rewritten.MatchString(key):
			t.Logf("%s: only one has it: %v", key, said(old, now))
		case old == nil:
			t.Errorf("%s is new, at revision %s (%d before), by %s", key, now.GetResourceVersion(), was, managers(now))
		case now == nil:
			t.Errorf("%s is gone", key)
		case cmp.Equal(withoutEmpty(old.Object), withoutEmpty(now.Object)):
			equal++
		case rewritten.MatchString(key):
			t.Logf("%s was rewritten", key)
		default:
			t.Errorf("%s differs (- before, + after; revision %s, newest before %d):\n%s", key, now.GetResourceVersion(), was,
				cmp.Diff(old.Object, now.Object))
		}
	}
	t.Logf("%d objects are equal", equal)
	require.Positive(t, equal)
}

// withoutEmpty returns a value with null for each empty list. Protobuf does not distinguish them: upstream reads
// null at once, Coracle the written value until it restarts.
func withoutEmpty(v any) any {
	switch v := v.(type) {
	case []any:
		if len(v) == 0 {
			return nil
		}
		all := make([]any, len(v))
		for i := range v {
			all[i] = withoutEmpty(v[i])
		}
		return all
	case map[string]any:
		all := make(map[string]any, len(v))
		for k := range v {
			all[k] = withoutEmpty(v[k])
		}
		return all
	}
	return v
}

func said(either ...*unstructured.Unstructured) any {
	for _, o := range either {
		if o != nil && o.GetKind() == "Event" {
			return o.Object["message"]
		}
	}
	return ""
}

func managers(o *unstructured.Unstructured) (names []string) {
	for _, m := range o.GetManagedFields() {
		names = append(names, m.Manager)
	}
	return names
}

// notCreated are kinds that Coracle serves, but whose creation it refuses because it would not honour them.
var notCreated = map[string]bool{"servicecidrs.networking.k8s.io": true}

// create creates an object of each served version of each kind, and returns how many it created.
func create(t *testing.T, config *rest.Config, namespace string) int {
	t.Helper()
	api, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	served, created := kinds(t, config), 0
	ns := &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}},
	}
	_, err = api.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(t.Context(), ns,
		metav1.CreateOptions{})
	require.NoError(t, err)
	kindOf := kindNames(t, config)
	for _, s := range stubs(t, namespace) {
		isNamespaced, has := served[s.gvr]
		if !has {
			continue // not stable, or custom resources of other tests
		}
		s.object.SetAPIVersion(s.gvr.GroupVersion().String())
		s.object.SetKind(kindOf[s.gvr])
		to := dynamic.ResourceInterface(api.Resource(s.gvr))
		if isNamespaced {
			to = api.Resource(s.gvr).Namespace(namespace)
		}
		_, err := to.Create(t.Context(), s.object, metav1.CreateOptions{FieldManager: "graduation"})
		if apierrors.IsAlreadyExists(err) && !isNamespaced || err != nil && notCreated[s.gvr.GroupResource().String()] {
			continue // cluster-scoped, and created by the earlier call
		}
		if err != nil {
			t.Errorf("%s %s: %v", s.gvr, s.object.GetName(), err)
			continue
		}
		created++
	}
	return created
}

func kindNames(t *testing.T, config *rest.Config) map[schema.GroupVersionResource]string {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(config)
	require.NoError(t, err)
	_, lists, err := d.ServerGroupsAndResources()
	require.NoError(t, err)
	names := map[schema.GroupVersionResource]string{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		require.NoError(t, err)
		for _, r := range list.APIResources {
			names[gv.WithResource(r.Name)] = r.Kind
		}
	}
	return names
}

// serve runs Coracle's API server alone on the host's data until the caller calls end.
func serve(t *testing.T, h *host.Host, args ...string) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var log bytes.Buffer
	server := h.Command(ctx, h.Coracle,
		append([]string{
			"server", "--no-node", "--merge-kubeconfig=false", "--disable", "controllers,scheduler,ingress,loadbalancer",
			"--disable-admission-plugins", "ServiceAccount",
		}, args...)...)
	server.Stderr = &log
	server.Cancel = func() error { return server.Process.Signal(os.Interrupt) }
	server.WaitDelay = host.Patience
	require.NoError(t, server.Start())
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		stop()
		if err := server.Wait(); t.Failed() {
			t.Logf("server: %v\n%s", err, log.String())
		}
	}
	t.Cleanup(end)
	require.Eventually(t, func() bool {
		if _, err := os.Stat(filepath.Join(h.DataDir, "kubeconfig")); err != nil {
			return false
		}
		d, err := discovery.NewDiscoveryClientForConfig(h.REST())
		require.NoError(t, err)
		return d.RESTClient().Get().AbsPath("/readyz").Timeout(time.Second).Do(t.Context()).Error() == nil
	}, host.Patience, 20*time.Millisecond)
	return end
}

// TestUpstreamReadsCoraclesData starts upstream's API server on the etcd data of a Coracle cluster, then Coracle on
// the data that upstream wrote. Every object of every stable version must read back equal: managed fields,
// encrypted Secrets, allocations, custom resources.
func TestUpstreamReadsCoraclesData(t *testing.T) {
	upstream.Needs(t)
	h := host.New(t)
	h.Run("start", "--secrets-encryption")
	h.Apply(cluster)
	h.Ctl("wait --for=condition=Established crd/boats.harbour.example.com")
	h.Apply(boats)
	h.Pipe("apiVersion: harbour.example.com/v1\nkind: Boat\nmetadata: {name: applied, namespace: default}\nspec: "+
		"{colour: red}\n", "ctl", "apply", "--server-side", "--field-manager=painter", "-f", "-")
	h.Ctl("label boat applied by=hand")
	h.Ctl("rollout status deployment/web --timeout=60s")
	h.Run("stop")

	// Without controllers and a node, no object changes by itself.
	end := serve(t, h, "--secrets-encryption")
	t.Logf("%d objects created by clients of Coracle", create(t, h.REST(), "made-by-coracle"))
	served := kinds(t, h.REST())
	ours := read(t, h.REST(), served)
	end()

	keys := map[string][]string{upstream.APIServer: {
		"--encryption-provider-config=" + filepath.Join(h.DataDir, "encryption/config.yaml"),
		"--disable-admission-plugins=ServiceAccount"}}
	config := upstream.Config{
		Keys:  filepath.Join(h.DataDir, "pki"),
		Data:  filepath.Join(h.DataDir, "store/etcd"),
		Port:  6443,
		Flags: keys,
	}
	theirServer := upstream.New(t, h, config)
	theirKinds := kinds(t, theirServer.REST())
	for gvr := range theirKinds {
		if _, has := served[gvr]; !has && !notCreated[gvr.GroupResource().String()] {
			t.Errorf("Coracle does not serve upstream's stable kind %s", gvr)
		}
	}
	same(t, ours, read(t, theirServer.REST(), served))

	t.Logf("%d objects created by clients of upstream's", create(t, theirServer.REST(), "made-by-upstream"))
	theirs := read(t, theirServer.REST(), served)
	require.NoError(t, theirServer.Stop())
	end = serve(t, h, "--secrets-encryption")
	same(t, theirs, read(t, h.REST(), served))
	end()
}

const cluster = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: busybox}]}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{port: 80}], type: NodePort}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden, namespace: default}
stringData: {password: opensesame}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: sailors}
aggregationRule: {clusterRoleSelectors: [{matchLabels: {harbour: "yes"}}]}
rules: []
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: boats, labels: {harbour: "yes"}}
rules: [{apiGroups: [harbour.example.com], resources: [boats], verbs: [get]}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.harbour.example.com}
spec:
  group: harbour.example.com
  scope: Namespaced
  names: {plural: boats, kind: Boat}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {colour: {type: string}, length: {type: integer, default: 7}}}, status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
  - name: v2
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {colour: {type: string}, length: {type: integer}}}, status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
`

const boats = `
apiVersion: harbour.example.com/v1
kind: Boat
metadata: {name: one, namespace: default, finalizers: [harbour.example.com/moored]}
spec: {colour: blue}
---
apiVersion: harbour.example.com/v2
kind: Boat
metadata: {name: two, namespace: default}
spec: {colour: green, length: 12}
`
