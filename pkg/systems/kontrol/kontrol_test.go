package kontrol_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"k8s.io/client-go/tools/clientcmd"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

func managed(name, cluster, template string) *kontrol.Resource {
	return &kontrol.Resource{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kontrol.ResourceSpec{ClusterName: cluster, Template: runtime.RawExtension{Raw: []byte(template)}}}
}

func configMapTemplate(name, value string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default"},"data":{"a":%q}}`, name, value)
}

// in waits until a Resource has a state for its current generation.
func (c *cluster) in(name string, s kontrol.State) *kontrol.Resource {
	c.T.Helper()
	return controlplane.Until(c, &kontrol.ResourceList{}, "", name, func(r *kontrol.Resource) bool {
		return r.Status.State == s && r.Status.ObservedGeneration == r.Generation
	})
}

// told waits for an event about a Resource or Cluster.
func (c *cluster) told(name, reason, message string) {
	c.T.Helper()
	controlplane.Until(c, &corev1.EventList{}, "default", "", func(e *corev1.Event) bool {
		return e.InvolvedObject.Name == name && e.Reason == reason && strings.HasPrefix(e.Message, message)
	})
}

func (c *cluster) configMap(name string) (*corev1.ConfigMap, bool) {
	c.T.Helper()
	var m corev1.ConfigMap
	err := c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: name}, &m)
	if !apierrors.IsNotFound(err) {
		require.NoError(c.T, err)
	}
	return &m, err == nil
}

func (c *cluster) has(name string, data map[string]string) {
	c.T.Helper()
	controlplane.Until(c, &corev1.ConfigMapList{}, "default", name, func(m *corev1.ConfigMap) bool {
		return fmt.Sprint(m.Data) == fmt.Sprint(data)
	})
}

// beside starts a second cluster and registers it under the name, with a Secret of that name in the namespace default.
func (c *cluster) beside(name string) *cluster {
	c.T.Helper()
	other := start(c.T, controlplane.Options{Log: slog.LevelError, HTTP: true, Bare: true})
	c.Make(kubeconfigSecret(c.T, name, other, nil))
	c.Make(&kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}},
		Spec: kontrol.ClusterSpec{KubeconfigSecret: &kontrol.SecretReference{Namespace: "default", Name: name}}})
	return other
}

func kubeconfigSecret(t testing.TB, name string, of *cluster, change func(*clientcmdapi.Config)) *corev1.Secret {
	t.Helper()
	r := of.REST("admin", user.SystemPrivilegedGroup)
	cfg := clientcmdapi.Config{CurrentContext: "x",
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "x", AuthInfo: "x"}},
		Clusters:  map[string]*clientcmdapi.Cluster{"x": {Server: r.Host, CertificateAuthorityData: r.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"x": {ClientCertificateData: r.CertData, ClientKeyData: r.KeyData}}}
	if change != nil {
		change(&cfg)
	}
	data, err := clientcmd.Write(cfg)
	require.NoError(t, err)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string][]byte{"kubeconfig": data},
	}
}

// TestKontrolModes checks each mode on the local and a remote cluster: drift is reported, corrected, or corrected
// and pruned. The object is deleted with its Resource or stays, as the deletion policy says.
func TestKontrolModes(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	c.Make(&kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: kontrol.ClusterSpec{Local: true}})
	other := c.beside("there")
	for name, target := range map[string]*cluster{"here": c, "there": other} {
		t.Run(name, func(t *testing.T) {
			report, correct, enforce := managed("report-"+name, name, configMapTemplate("report", "b")), managed("correct-"+name,
				name, configMapTemplate("correct", "b")), managed("enforce-"+name, name, configMapTemplate("enforce", "b"))
			report.Spec.Mode, enforce.Spec.Mode, report.Spec.DeletionPolicy = kontrol.ModeReport, kontrol.ModeEnforce,
				kontrol.DeletionOrphan
			c.Make(report, correct, enforce)
			for _, m := range []string{"report", "correct", "enforce"} {
				c.in(m+"-"+name, kontrol.StateSynced)
				got, ok := target.configMap(m)
				require.True(t, ok)
				require.Equal(t, map[string]string{"a": "b"}, got.Data)
				require.Equal(t, "1", got.Annotations[kontrol.AnnotationGeneration])
				target.Change(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, m,
					`{"data":{"a":"drift","more":"x"}}`)
			}
			target.has("correct", map[string]string{"a": "b", "more": "x"})
			target.has("enforce", map[string]string{"a": "b"})
			c.in("correct-"+name, kontrol.StateSynced)
			c.in("enforce-"+name, kontrol.StateSynced)
			drifted := c.in("report-"+name, kontrol.StateDrifted)
			require.Contains(t, drifted.Status.Message, ".data.a was changed by somebody")
			c.told("report-"+name, "Drifted", "On cluster "+name+": .data.a was changed by somebody")
			c.told("correct-"+name, "DriftEnded", "On cluster "+name)
			var current kontrol.CurrentState
			require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Name: "report-" + name + "." + name}, &current))
			require.EqualValues(t, 1, current.State.DriftCount, "what was added is listed, but does not count")
			require.Len(t, current.State.Drift, 2)
			d := current.State.Drift[0]
			require.Equal(t, []any{".data.a", kontrol.DriftChanged, `"b"`, `"drift"`, "somebody", "Update"},
				[]any{d.Path, d.Type, d.Desired, d.Actual, d.Manager, d.Operation})
			require.NotNil(t, d.Time)
			require.Equal(t, ".data.more", current.State.Drift[1].Path)
			require.Equal(t, kontrol.DriftAdded, current.State.Drift[1].Type)

			require.NoError(t,
				target.Delete(c.Ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "correct"}}))
			target.has("correct", map[string]string{"a": "b"})

			// New content is applied. The revision increases, or can be set back.
			c.Change(&kontrol.Resource{}, "correct-"+name, `{"spec":{"template":{"data":{"a":"c"}}}}`)
			require.EqualValues(t, 2, *c.in("correct-"+name, kontrol.StateSynced).Spec.Revision)
			c.Change(&kontrol.Resource{}, "correct-"+name, `{"spec":{"revision":1,"template":{"data":{"a":"b"}}}}`)
			back := c.in("correct-"+name, kontrol.StateSynced)
			require.EqualValues(t, 1, *back.Spec.Revision)
			require.Len(t, back.Status.History, 2)
			got, _ := target.configMap("correct")
			require.Equal(t, []string{"b", "1", "3"},
				[]string{got.Data["a"], got.Annotations[kontrol.AnnotationRevision], got.Annotations[kontrol.AnnotationGeneration]})

			for _, m := range []string{"report", "correct", "enforce"} {
				r := &kontrol.Resource{ObjectMeta: metav1.ObjectMeta{Name: m + "-" + name}}
				require.NoError(t, c.Delete(c.Ctx, r))
				c.Gone(r)
				c.Gone(&kontrol.AppliedState{ObjectMeta: metav1.ObjectMeta{Name: r.Name + "." + name}})
				c.Gone(&kontrol.CurrentState{ObjectMeta: metav1.ObjectMeta{Name: r.Name + "." + name}})
				got, ok := target.configMap(m)
				require.Equal(t, m == "report", ok, m)
				require.Empty(t, got.Annotations)
				require.Empty(t, got.Labels)
			}
		})
	}
}

// TestKontrolOrder checks that a Resource waits for a missing kind, for dependencies and for lower waves, and that
// the error names a cycle.
func TestKontrolOrder(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	c.Make(&kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: kontrol.ClusterSpec{Local: true}})
	c.Make(managed("widget", "here",
		`{"apiVersion":"x.dev/v1","kind":"Widget","metadata":{"name":"w","namespace":"shop"},"spec":{"a":1}}`))
	waiting := c.in("widget", kontrol.StateOutOfSync)
	require.NotEmpty(t, waiting.Status.Message)
	controlplane.Until(c, &kontrol.AppliedStateList{}, "", "widget.here", func(a *kontrol.AppliedState) bool {
		return a.State.Reason == kontrol.ReasonNoKind
	})
	after := managed("after", "here", configMapTemplate("after", "b"))
	after.Spec.DependsOn = []string{"widget"}
	wave := managed("wave", "here", configMapTemplate("wave", "b"))
	wave.Annotations = map[string]string{kontrol.AnnotationWave: "1"}
	c.Make(after, wave, managed("shop", "here", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}}`))
	controlplane.Until(c, &kontrol.AppliedStateList{}, "", "after.here", func(a *kontrol.AppliedState) bool {
		return a.State.Reason == kontrol.ReasonDependency
	})
	controlplane.Until(c, &kontrol.AppliedStateList{}, "", "wave.here", func(a *kontrol.AppliedState) bool {
		return a.State.Reason == kontrol.ReasonDependency
	})
	_, made := c.configMap("after")
	require.False(t, made)
	cycle := managed("cycle", "here", configMapTemplate("cycle", "b"))
	cycle.Spec.DependsOn = []string{"after2"}
	c.Make(cycle)
	after2 := managed("after2", "here", configMapTemplate("after2", "b"))
	after2.Spec.DependsOn = []string{"cycle"}
	c.Make(after2)
	controlplane.Until(c, &kontrol.AppliedStateList{}, "", "cycle.here", func(a *kontrol.AppliedState) bool {
		return a.State.Reason == kontrol.ReasonDependencyCycle
	})
	require.NoError(t, c.Delete(c.Ctx, cycle))
	require.NoError(t, c.Delete(c.Ctx, after2))
}

// TestKontrolConflicts checks that a second Resource for the same object, another Kontrol's object and foreign
// fields are conflicts, which Kontrol does not force.
func TestKontrolConflicts(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	c.Make(&kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: kontrol.ClusterSpec{Local: true}})
	theirs := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "theirs"}, Data: map[string]string{"a": "theirs"},
	}
	foreign := theirs.DeepCopy()
	foreign.Name, foreign.Annotations = "foreign", map[string]string{kontrol.AnnotationID: "42"}
	require.NoError(t, c.Create(c.Ctx, theirs, ctrl.FieldOwner("somebody")))
	c.Make(foreign, managed("one", "here", configMapTemplate("m", "1")))
	c.in("one", kontrol.StateSynced)
	c.Make(managed("two", "here", configMapTemplate("m", "2")),
		managed("theirs", "here", configMapTemplate("theirs", "ours")),
		managed("foreign", "here", configMapTemplate("foreign", "ours")))
	require.Contains(t, c.in("two", kontrol.StateConflict).Status.Message, "Resource one already has the same object")
	require.Contains(t, c.in("theirs", kontrol.StateConflict).Status.Message, `.data.a: conflict with "somebody"`)
	c.told("theirs", "Conflict", "On cluster ")
	require.Contains(t, c.in("foreign", kontrol.StateConflict).Status.Message, "belongs to the Resource with the id 42")
	for name, want := range map[string]string{"m": "1", "theirs": "theirs", "foreign": "theirs"} {
		m, _ := c.configMap(name)
		require.Equal(t, want, m.Data["a"])
	}
	// The object of a Resource that was never applied stays when the Resource is deleted.
	require.NoError(t, c.Delete(c.Ctx, &kontrol.Resource{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}))
	c.Gone(&kontrol.Resource{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}})
	_, ok := c.configMap("theirs")
	require.True(t, ok)
	// Once the first Resource is deleted, the second one gets the object.
	require.NoError(t, c.Delete(c.Ctx, &kontrol.Resource{ObjectMeta: metav1.ObjectMeta{Name: "one"}}))
	c.Change(&kontrol.Resource{}, "two", `{"spec":{"template":{"data":{"a":"3"}}}}`)
	c.has("m", map[string]string{"a": "3"})
}

// TestKontrolUnrecorded checks that an apply whose answer was lost is treated like a recorded one: drift from it is
// corrected. The annotations alone, which anyone can write, prove nothing.
func TestKontrolUnrecorded(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	c.Make(&kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: kontrol.ClusterSpec{Local: true}})
	for name, manager := range map[string]string{"lost": kontrol.FieldManager, "forged": "somebody"} {
		r := managed(name, "here", configMapTemplate(name, "1"))
		r.Spec.Suspend = true
		c.Make(r)
		id := controlplane.Until(c, &kontrol.ResourceList{}, "", name, func(r *kontrol.Resource) bool {
			return r.Status.ID != 0
		}).Status.ID
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default","labels":{%q:"%d"},"annotations":{%q:"%[3]d",%[5]q:"1"}},"data":{"a":"1"}}`,
			name, kontrol.LabelID, id, kontrol.AnnotationID, kontrol.AnnotationGeneration)
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		require.NoError(t, c.Patch(c.Ctx, m, ctrl.RawPatch(types.ApplyPatchType, []byte(body)), ctrl.FieldOwner(manager)))
		c.Change(m, name, `{"data":{"a":"drift"}}`)
		c.Change(&kontrol.Resource{}, name, `{"spec":{"suspend":false}}`)
	}
	c.in("lost", kontrol.StateSynced)
	c.has("lost", map[string]string{"a": "1"})
	require.Contains(t, c.in("forged", kontrol.StateConflict).Status.Message, `conflict with "somebody"`)
	c.has("forged", map[string]string{"a": "drift"})
}

// TestKontrolIgnores checks that ignored fields are set once and then left to other managers.
func TestKontrolIgnores(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	c.Make(&kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: kontrol.ClusterSpec{Local: true}})
	r := managed("m", "here",
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m","namespace":"default"},"data":{"a":"b","scale":"1"}}`)
	r.Spec.Ignore = &kontrol.Ignore{Fields: []string{"data.scale"}}
	r.Spec.Mode = kontrol.ModeEnforce
	c.Make(r)
	c.in("m", kontrol.StateSynced)
	c.has("m", map[string]string{"a": "b", "scale": "1"})
	c.Change(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, "m", `{"data":{"scale":"7"}}`)
	c.Change(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, "m", `{"data":{"a":"drift"}}`)
	c.has("m", map[string]string{"a": "b", "scale": "7"})
	c.Change(&kontrol.Resource{}, "m", `{"spec":{"template":{"data":{"a":"c"}}}}`)
	c.has("m", map[string]string{"a": "c", "scale": "7"})
	c.in("m", kontrol.StateSynced)
}

// TestKontrolBadClusters checks that each broken Cluster reports its error, and that others work meanwhile.
func TestKontrolBadClusters(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	other := c.beside("there")
	bad := func(name string, change func(*clientcmdapi.Config)) {
		c.Make(kubeconfigSecret(t, name, other, change), &kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: kontrol.ClusterSpec{KubeconfigSecret: &kontrol.SecretReference{Namespace: "default", Name: name}}})
	}
	user := func(change func(*clientcmdapi.AuthInfo)) func(*clientcmdapi.Config) {
		return func(cfg *clientcmdapi.Config) { change(cfg.AuthInfos["x"]) }
	}
	bad("exec", user(func(a *clientcmdapi.AuthInfo) {
		a.Exec = &clientcmdapi.ExecConfig{Command: "sh", APIVersion: "client.authentication.k8s.io/v1"}
	}))
	bad("file", user(func(a *clientcmdapi.AuthInfo) { a.TokenFile = "/etc/shadow" }))
	bad("closed", func(cfg *clientcmdapi.Config) { cfg.Clusters["x"].Server = "https://127.0.0.1:1" })
	bad("unknown", func(cfg *clientcmdapi.Config) {
		cfg.Clusters["x"].CertificateAuthorityData = []byte("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
	})
	c.Make(&kontrol.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec:       kontrol.ClusterSpec{KubeconfigSecret: &kontrol.SecretReference{Namespace: "default", Name: "nothing"}},
	})
	reason := func(name, reason, message string) {
		t.Helper()
		controlplane.Until(c, &kontrol.ClusterList{}, "", name, func(k *kontrol.Cluster) bool {
			r := meta.FindStatusCondition(k.Status.Conditions, kontrol.ConditionReady)
			return r != nil && r.Reason == reason && strings.Contains(r.Message, message)
		})
	}
	reason("exec", kontrol.ReasonKubeconfigInvalid, "exec runs a command")
	reason("file", kontrol.ReasonKubeconfigInvalid, "tokenFile is a file")
	reason("closed", kontrol.ReasonUnreachable, "https://127.0.0.1:1")
	reason("unknown", kontrol.ReasonKubeconfigInvalid, "")
	reason("none", kontrol.ReasonSecretMissing, "there is no Secret nothing in namespace default")
	c.Make(managed("lost", "closed", configMapTemplate("m", "b")), managed("fine", "there", configMapTemplate("m", "b")),
		managed("nowhere", "missing", configMapTemplate("m", "b")))
	c.in("fine", kontrol.StateSynced)
	require.Contains(t, c.in("lost", kontrol.StateUnreachable).Status.Message, "127.0.0.1:1")
	require.Contains(t, c.in("nowhere", kontrol.StateUnreachable).Status.Message, "the cluster does not exist")
	// Without its Secret a cluster is unreachable. It recovers with the Secret.
	var secret corev1.Secret
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: "there"}, &secret))
	require.NoError(t, c.Delete(c.Ctx, &secret))
	reason("there", kontrol.ReasonSecretMissing, "create it")
	c.in("fine", kontrol.StateUnreachable)
	c.told("there", "ClusterNotReady", "SecretMissing: ")
	c.Make(kubeconfigSecret(t, "there", other, nil))
	c.in("fine", kontrol.StateSynced)
	c.told("there", "ClusterReady", "")
	other.Change(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, "m", `{"data":{"a":"drift"}}`)
	other.has("m", map[string]string{"a": "b"})
}

// TestKontrolWrites checks that an edit costs one write each of AppliedState, CurrentState and the Resource's status.
func TestKontrolWrites(t *testing.T) {
	c := start(t, controlplane.Options{Log: slog.LevelError})
	c.Make(&kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: kontrol.ClusterSpec{Local: true}},
		managed("m", "here", configMapTemplate("m", "0")))
	c.in("m", kontrol.StateSynced)
	generation := func(o ctrl.Object) int64 {
		require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Name: "m.here"}, o))
		return o.GetGeneration()
	}
	applied, current := generation(&kontrol.AppliedState{}), generation(&kontrol.CurrentState{})
	const edits = 50
	var took, seen []time.Duration
	for i := range edits {
		began := time.Now()
		c.Change(&kontrol.Resource{}, "m", fmt.Sprintf(`{"spec":{"template":{"data":{"a":"%d"}}}}`, i+1))
		controlplane.Until(c, &corev1.ConfigMapList{}, "default", "m", func(m *corev1.ConfigMap) bool {
			return m.Data["a"] == fmt.Sprint(i+1)
		})
		took = append(took, time.Since(began))
		r := c.in("m", kontrol.StateSynced)
		seen = append(seen, time.Since(began))
		require.EqualValues(t, i+2, r.Generation)
	}
	var edited kontrol.Resource
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Name: "m"}, &edited))
	owned := map[string]string{}
	for _, m := range edited.ManagedFields {
		owned[m.Manager+"/"+m.Subresource] = string(m.FieldsV1.GetRawBytes())
	}
	require.JSONEq(t, `{"f:spec":{"f:template":{"f:data":{"f:a":{}}}}}`, owned["somebody/"], "users own single fields")
	require.JSONEq(t, `{"f:status":{}}`, owned["kube-controller-manager/status"], "the status has one owner")
	require.EqualValues(t, edits, generation(&kontrol.AppliedState{})-applied,
		"AppliedStates are written once for each edit")
	require.EqualValues(t, edits, generation(&kontrol.CurrentState{})-current,
		"CurrentStates are written once for each edit")
	c.Change(&kontrol.Resource{}, "m", `{"spec":{"mode":"Report"}}`)
	c.in("m", kontrol.StateSynced)
	var detected []time.Duration
	for i := range edits {
		began := time.Now()
		c.Change(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, "m",
			fmt.Sprintf(`{"data":{"a":"drift %d"}}`, i))
		controlplane.Until(c, &kontrol.CurrentStateList{}, "", "m.here", func(s *kontrol.CurrentState) bool {
			return len(s.State.Drift) == 1 && s.State.Drift[0].Actual == fmt.Sprintf(`"drift %d"`, i)
		})
		detected = append(detected, time.Since(began))
	}
	t.Logf("edit to applied: p50 %v, edit to summary: p50 %v, drift to detected: p50 %v", median(took), median(seen),
		median(detected))
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
