package v1alpha1

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
)

const configMap = `{"apiVersion":"v1","data":{"a":"b"},"kind":"ConfigMap","metadata":{"name":"m","namespace":"ns"}}`

func newResource(change func(*Resource)) *Resource {
	r := &Resource{ObjectMeta: metav1.ObjectMeta{Name: "r", UID: "u", Generation: 1},
		Spec: ResourceSpec{ClusterName: "c", Template: runtime.RawExtension{Raw: []byte(configMap)}}}
	if change != nil {
		change(r)
	}
	Default(r)
	Prepare(r, nil)
	return r
}

func template(text string) func(*Resource) {
	return func(r *Resource) { r.Spec.Template.Raw = []byte(text) }
}

func TestValidate(t *testing.T) {
	negative := int64(-1)
	long := strings.Repeat("x", MaxTemplate)
	for name, c := range map[string]struct {
		change func(*Resource)
		want   []string
	}{
		"valid": {nil, nil},
		"selector": {
			func(r *Resource) { r.Spec.ClusterName, r.Spec.ClusterSelector = "", &metav1.LabelSelector{} }, nil,
		},
		"no cluster": {func(r *Resource) { r.Spec.ClusterName = "" }, []string{"spec.clusterName"}},
		"both": {
			func(r *Resource) { r.Spec.ClusterSelector = &metav1.LabelSelector{} }, []string{"spec.clusterSelector"},
		},
		"mode":            {func(r *Resource) { r.Spec.Mode = "fix" }, []string{"spec.mode"}},
		"deletion policy": {func(r *Resource) { r.Spec.DeletionPolicy = "x" }, []string{"spec.deletionPolicy"}},
		"revision":        {func(r *Resource) { r.Spec.Revision = &negative }, []string{"spec.revision"}},
		"itself":          {func(r *Resource) { r.Spec.DependsOn = []string{"r"} }, []string{"spec.dependsOn[0]"}},
		"twice":           {func(r *Resource) { r.Spec.DependsOn = []string{"a", "a"} }, []string{"spec.dependsOn[1]"}},
		"windows": {func(r *Resource) {
			r.Spec.Windows = []SyncWindow{
				{
					Kind: WindowAllow, Schedule: "0 22 * * 1-5", Duration: metav1.Duration{Duration: time.Hour},
					TimeZone: "Europe/Berlin",
				},
			}
		}, nil},
		"bad windows": {func(r *Resource) {
			r.Spec.Windows = append(r.Spec.Windows, []SyncWindow{
				{Kind: "Maybe", Schedule: "@daily", Duration: metav1.Duration{Duration: time.Hour}},
				{Kind: WindowAllow, Schedule: "@daily", Duration: metav1.Duration{Duration: time.Second}},
				{Kind: WindowAllow, Schedule: "now and then", Duration: metav1.Duration{Duration: time.Hour}},
				{Kind: WindowAllow, Schedule: "0 0 30 2 *", Duration: metav1.Duration{Duration: time.Hour}},
				{Kind: WindowDeny, Schedule: "@daily", Duration: metav1.Duration{Duration: time.Hour}, TimeZone: "Middle/Earth"},
				{Kind: WindowDeny, Schedule: "@daily", Duration: metav1.Duration{Duration: time.Hour}, TimeZone: "Local"},
				{Kind: WindowDeny, Schedule: "TZ=UTC 0 0 * * *", Duration: metav1.Duration{Duration: time.Hour}},
				{Kind: WindowDeny, Schedule: "@every 5m", Duration: metav1.Duration{Duration: time.Hour}},
			}...)
		}, []string{
			"spec.windows[0].kind", "spec.windows[1].duration", "spec.windows[2].schedule", "spec.windows[3].schedule",
			"spec.windows[4].timeZone",
			"spec.windows[5].timeZone", "spec.windows[6].schedule", "spec.windows[7].schedule",
		}},
		"approval": {func(r *Resource) { r.Spec.Approval = "Perhaps" }, []string{"spec.approval"}},
		"wave": {
			func(r *Resource) { r.Annotations = map[string]string{AnnotationWave: "x"} },
			[]string{"metadata.annotations[" + AnnotationWave + "]"},
		},
		"long name": {func(r *Resource) { r.Name = strings.Repeat("a", 151) }, []string{"metadata.name"}},
		"ignored fields": {
			func(r *Resource) { r.Spec.Ignore = &Ignore{Fields: []string{"spec.replicas", "a[", "kind"}} },
			[]string{"spec.ignore.fields[1]", "spec.ignore.fields[2]"},
		},
		"ignored manager": {
			func(r *Resource) { r.Spec.Ignore = &Ignore{Managers: []string{FieldManager}} },
			[]string{"spec.ignore.managers[0]"},
		},
		"no template": {template(``), []string{"spec.template"}},
		"a list":      {template(`[]`), []string{"spec.template"}},
		"too large":   {template(`{"a":"` + long + `"}`), []string{"spec.template"}},
		"too deep": {
			template(strings.Repeat(`{"a":`, 70) + `1` + strings.Repeat(`}`, 70)), []string{"spec.template"},
		},
		"no kind": {template(`{"apiVersion":"v1","metadata":{"name":"a"}}`), []string{"spec.template.kind"}},
		"no name": {template(`{"apiVersion":"v1","kind":"A"}`), []string{"spec.template.metadata.name"}},
		"generateName": {
			template(`{"apiVersion":"v1","kind":"A","metadata":{"name":"a","generateName":"b"}}`),
			[]string{"spec.template.metadata.generateName"},
		},
		"status": {
			template(`{"apiVersion":"v1","kind":"A","metadata":{"name":"a"},"status":{}}`),
			[]string{"spec.template.status"},
		},
		"a list of objects": {
			template(`{"apiVersion":"v1","kind":"List","metadata":{"name":"a"},"items":[]}`),
			[]string{"spec.template.kind"},
		},
		"makes itself": {
			template(`{"apiVersion":"kontrol.coracle.dev/v1alpha1","kind":"Resource","metadata":{"name":"r"}}`),
			[]string{"spec.template.apiVersion"},
		},
		"name of a path": {
			template(`{"apiVersion":"v1","kind":"A","metadata":{"name":"../a"}}`),
			[]string{"spec.template.metadata.name"},
		},
		"kind of a path": {
			template(`{"apiVersion":"v1","kind":"../A","metadata":{"name":"a"}}`), []string{"spec.template.kind"},
		},
		"numbers in labels": {
			template(`{"apiVersion":"v1","kind":"A","metadata":{"name":"a","labels":{"a":1}}}`),
			[]string{"spec.template.metadata.labels"},
		},
		"Kontrol's own label": {
			template(`{"apiVersion":"v1","kind":"A","metadata":{"name":"a","labels":{"kontrol/resource-id":"1"}}}`),
			[]string{"spec.template.metadata.labels[kontrol/resource-id]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range Validate(newResource(c.change)) {
				got = append(got, e.Field)
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestTheObjectOfAResourceStaysTheSame(t *testing.T) {
	old := newResource(nil)
	for text, want := range map[string]string{
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m","namespace":"ns"}}`:    "",
		`{"apiVersion":"v2","kind":"ConfigMap","metadata":{"name":"m","namespace":"ns"}}`:    "",
		`{"apiVersion":"x/v1","kind":"ConfigMap","metadata":{"name":"m","namespace":"ns"}}`:  "spec.template.apiVersion",
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"m","namespace":"ns"}}`:       "spec.template.kind",
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m","namespace":"other"}}`: "spec.template.metadata.namespace",
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"n","namespace":"ns"}}`:    "spec.template.metadata.name",
	} {
		errs := ValidateUpdate(newResource(template(text)), old)
		if want == "" {
			require.Empty(t, errs, text)
			continue
		}
		require.Len(t, errs, 1, text)
		require.Equal(t, want, errs[0].Field)
	}
}

// TestScopeOfTheObject checks that a missing or superfluous namespace is refused when a Resource is made, not first by
// a cluster, and that a stored Resource can still be changed and deleted.
func TestScopeOfTheObject(t *testing.T) {
	for text, want := range map[string]string{
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"}}`:                        "ConfigMap is namespaced: set the namespace",
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"m","namespace":""}}`:   "Deployment is namespaced",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"m","namespace":"ns"}}`:       "Namespace is not namespaced: remove",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"m"}}`:                        "",
		`{"apiVersion":"example.com/v1","kind":"Pod","metadata":{"name":"only-clusters-know"}}`: "",
	} {
		r := newResource(template(text))
		require.Empty(t, ValidateUpdate(r, newResource(template(text))), text)
		errs := Validate(r)
		if want == "" {
			require.Empty(t, errs, text)
			continue
		}
		require.Len(t, errs, 1, text)
		require.Equal(t, "spec.template.metadata.namespace", errs[0].Field)
		require.Contains(t, errs[0].Detail, want)
	}
}

func TestAnUpdateWithoutARevisionKeepsIt(t *testing.T) {
	old := newResource(nil)
	*old.Spec.Revision = 3
	r := old.DeepCopy()
	r.Spec.Revision = nil
	DefaultWritten(r) // as the API server does on a write
	Prepare(r, old)
	require.EqualValues(t, 3, *r.Spec.Revision, "so that nothing has changed")
	r.Spec.Revision = nil
	DefaultWritten(r)
	Prepare(r, nil)
	require.EqualValues(t, 1, *r.Spec.Revision)
}

func TestRevisionFollowsOrIsSet(t *testing.T) {
	old := newResource(nil)
	require.EqualValues(t, 1, *old.Spec.Revision)
	require.Positive(t, old.Status.ID)
	for set, want := range map[int64]int64{0: 2, 1: 2, 7: 7} {
		r := old.DeepCopy()
		r.Spec.Template.Raw = []byte(strings.Replace(configMap, `"b"`, `"c"`, 1))
		r.Spec.Revision = nil
		if set > 0 {
			r.Spec.Revision = &set
		}
		Changed(r, old)
		require.Equal(t, want, *r.Spec.Revision)
		require.Len(t, r.Status.History, 1)
		require.Equal(t, old.Spec.Template, r.Status.History[0].Template)
		require.EqualValues(t, 1, r.Status.History[0].Revision)
	}
}

// TestHistoryIsBounded checks that, after any writes, the history has the newest previous contents in order and
// within its bounds.
func TestHistoryIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newResource(nil)
		for i := range rapid.IntRange(1, 15).Draw(t, "writes") {
			next := r.DeepCopy()
			size := rapid.IntRange(0, MaxTemplate-200).Draw(t, "size")
			next.Spec.Template.Raw = fmt.Appendf(nil,
				`{"apiVersion":"v1","data":{"a":"%d%s"},"kind":"ConfigMap","metadata":{"name":"m"}}`, i, strings.Repeat("x", size))
			Prepare(next, r)
			Changed(next, r)
			total := 0
			for _, h := range next.Status.History {
				total += len(h.Template.Raw)
			}
			require.LessOrEqual(t, len(next.Status.History), MaxHistory)
			require.LessOrEqual(t, total, maxHistoryBytes)
			require.Equal(t, r.Spec.Template.Raw, next.Status.History[0].Template.Raw)
			require.Equal(t, *r.Spec.Revision+1, *next.Spec.Revision)
			r = next
		}
	})
}

func TestTemplatesAreComparedByContent(t *testing.T) {
	a := newResource(template(`{ "kind":"A", "apiVersion":"v1", "n": 10000000000000001, "metadata":{"name":"a<b"} }`))
	require.Equal(t, `{"apiVersion":"v1","kind":"A","metadata":{"name":"a<b"},"n":10000000000000001}`,
		string(a.Spec.Template.Raw))
}

func TestValidateCluster(t *testing.T) {
	for name, c := range map[string]struct {
		spec ClusterSpec
		name string
		want []string
	}{
		"local":   {ClusterSpec{Local: true}, "c", nil},
		"secret":  {ClusterSpec{KubeconfigSecret: &SecretReference{Namespace: "ns", Name: "s"}}, "c", nil},
		"neither": {ClusterSpec{}, "c", []string{"spec.kubeconfigSecret"}},
		"both": {
			ClusterSpec{Local: true, KubeconfigSecret: &SecretReference{Namespace: "ns", Name: "s"}},
			"c",
			[]string{"spec.kubeconfigSecret"},
		},
		"incomplete": {
			ClusterSpec{KubeconfigSecret: &SecretReference{Name: "s"}}, "c", []string{"spec.kubeconfigSecret.namespace"},
		},
		"dots": {ClusterSpec{Local: true}, "a.b", []string{"metadata.name"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &Cluster{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Spec: c.spec}
			DefaultCluster(o)
			var got []string
			for _, e := range ValidateCluster(o) {
				got = append(got, e.Field)
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestParsePath(t *testing.T) {
	n := func(s string) PathStep { return PathStep{Name: &s} }
	zero := 0
	for text, want := range map[string][]PathStep{
		"spec.replicas":                 {n("spec"), n("replicas")},
		".spec.replicas":                {n("spec"), n("replicas")},
		`metadata.annotations["a.b/c"]`: {n("metadata"), n("annotations"), n("a.b/c")},
		`c[name="a",port=80].image`:     {n("c"), {Keys: map[string]any{"name": "a", "port": 80.0}}, n("image")},
		"a[*].b":                        {n("a"), {Any: true}, n("b")},
		"a[0]":                          {n("a"), {Index: &zero}},
		`metadata.finalizers[="x"]`:     {n("metadata"), n("finalizers"), {Value: "x"}},
		"":                              nil, "a.": nil, "a[": nil, "a[b]": nil, "a[b=]": nil, "a[-1]": nil, "a[*": nil,
		`a["b"`: nil, "a]": nil, "a[*]b": nil,
		strings.Repeat("a.", 300): nil, strings.Repeat("[*]", 65): nil,
	} {
		got, err := ParsePath(text)
		require.Equal(t, want, got, text)
		require.Equal(t, want == nil, err != nil, text)
	}
}

// FuzzParsePath checks that the parser does not panic and limits the number of steps.
func FuzzParsePath(f *testing.F) {
	for _, s := range []string{"a.b", `a["b"]`, `a[b="c",d=1]`, "a[*]", "[0]", `a[="x"]`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if steps, err := ParsePath(s); err == nil && (len(steps) == 0 || len(steps) > maxSteps) {
			t.Fatal(steps)
		}
	})
}

func TestStateNames(t *testing.T) {
	r, c := SplitStateName(StateName("a.b", "c"))
	require.Equal(t, []string{"a.b", "c"}, []string{r, c})
}
