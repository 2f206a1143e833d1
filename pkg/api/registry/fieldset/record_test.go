package fieldset

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"pgregory.net/rapid"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// recorded is a kind whose status one controller writes.
type recorded struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              map[string]string `json:"spec,omitempty"`
	Status            struct {
		Text string            `json:"text,omitempty"`
		List []string          `json:"list,omitempty"`
		Map  map[string]string `json:"map,omitempty"`
		Time *metav1.Time      `json:"time,omitempty"`
	} `json:"status"`
}

func (r *recorded) DeepCopyObject() runtime.Object {
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

var recordedKind = schema.GroupVersionKind{Group: "test", Version: "v1", Kind: "Recorded"}

type recordedVersion struct{ sameVersion }

func (recordedVersion) New(schema.GroupVersionKind) (runtime.Object, error) {
	return &recorded{TypeMeta: metav1.TypeMeta{APIVersion: "test/v1", Kind: "Recorded"}}, nil
}
func (recordedVersion) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

// TestRecordPlansAgreeWithUpstream compares a record plan with upstream's field manager.
func TestRecordPlansAgreeWithUpstream(t *testing.T) {
	free := func(extensions spec.Extensions) spec.Schema {
		extensions["x-kubernetes-preserve-unknown-fields"] = true
		return spec.Schema{
			SchemaProps:      spec.SchemaProps{Type: []string{"object"}},
			VendorExtensible: spec.VendorExtensible{Extensions: extensions},
		}
	}
	model := free(spec.Extensions{
		"x-kubernetes-group-version-kind": []any{map[string]any{"group": "test", "version": "v1", "kind": "Recorded"}},
	})
	model.Properties = map[string]spec.Schema{
		"metadata": free(spec.Extensions{}), "status": free(spec.Extensions{"x-kubernetes-map-type": "atomic"}),
	}
	types, err := managedfields.NewTypeConverter(map[string]*spec.Schema{"test.v1.Recorded": &model}, false)
	require.NoError(t, err)
	reset := fieldpath.NewSet(fieldpath.MakePathOrDie("spec"))
	plan := NewRecordPlan(&recorded{}, "status", reset)
	require.NotNil(t, plan)
	require.Nil(t, NewRecordPlan(&recorded{}, "status", nil), "writes manage the spec too")
	v := recordedVersion{}
	upstreams, err := managedfields.NewDefaultCRDFieldManager(types, v, v, v, recordedKind, recordedKind.GroupVersion(),
		"status",
		fieldpath.NewExcludeFilterSetMap(map[fieldpath.APIVersion]*fieldpath.Set{"test/v1": reset}))
	require.NoError(t, err)
	planned := 0
	rapid.Check(t, func(t *rapid.T) {
		random := func() *recorded {
			r := &recorded{TypeMeta: metav1.TypeMeta{APIVersion: "test/v1", Kind: "Recorded"}}
			r.Name = "name"
			r.Status.Text = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "text")
			r.Status.List = rapid.SampledFrom([][]string{nil, {}, {"a"}, {"a", "b"}}).Draw(t, "list")
			r.Status.Map = rapid.SampledFrom([]map[string]string{nil, {}, {"a": "1"}}).Draw(t, "map")
			r.Spec = rapid.SampledFrom([]map[string]string{nil, {"x": "1"}, {"x": "2"}}).Draw(t, "spec")
			if rapid.IntRange(0, 5).Draw(t, "labels") == 0 {
				r.Labels = map[string]string{"l": rapid.StringMatching("[ab]").Draw(t, "label")}
			}
			return r
		}
		live, _ := v.New(recordedKind)
		var entries []metav1.ManagedFieldsEntry
		for step := range rapid.IntRange(1, 8).Draw(t, "steps") {
			manager := rapid.SampledFrom([]string{"one", "two", "three"}).Draw(t, "manager")
			obj := random()
			was := live.(*recorded).DeepCopyObject().(*recorded)
			was.ManagedFields, obj.ManagedFields = entries, entries
			want, err := upstreams.Update(was.DeepCopyObject(), obj.DeepCopyObject(), manager)
			require.NoError(t, err)
			w := Writer{
				Manager:     manager,
				APIVersion:  "test/v1",
				Subresource: "status",
				Time:        time.Now().UTC().Truncate(time.Second),
			}
			var got []metav1.ManagedFieldsEntry
			var ok bool
			if step == 0 {
				got, ok = plan.Created(obj, w)
			} else if len(entries) > 0 {
				got, ok = plan.Updated(was, obj, entries, w)
			}
			expected := want.(*recorded).ManagedFields
			if ok {
				planned++
				require.Equal(t, texts(expected), texts(got), "step %d", step)
			}
			for i := range expected { // entries are sorted by time in seconds
				expected[i].Time = &metav1.Time{Time: longAgo}
			}
			entries, live = expected, obj
		}
	})
	require.Positive(t, planned)

	// Upstream's field manager handles entries with parts of the status, from before it was managed as a whole.
	old := []metav1.ManagedFieldsEntry{
		{Manager: "one", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "test/v1", FieldsType: "FieldsV1",
			FieldsV1: fieldsOf([]byte(`{"f:status":{"f:text":{}}}`))},
	}
	next := &recorded{}
	next.Status.Text = "a"
	_, ok := plan.Updated(&recorded{}, next, old, Writer{Manager: "one", APIVersion: "test/v1"})
	require.False(t, ok)
}

func texts(list []metav1.ManagedFieldsEntry) string {
	var all []string
	for _, e := range list {
		all = append(all,
			strings.Join([]string{
				e.Manager, string(e.Operation), e.Subresource, string(e.FieldsV1.GetRawBytes()), strconv.FormatBool(e.Time != nil),
			}, " "))
	}
	return strings.Join(all, "\n")
}

func TestDiffer(t *testing.T) {
	type Part struct {
		Number int               `json:"number"`
		Text   string            `json:"text,omitempty"`
		List   []string          `json:"list,omitempty"`
		All    []string          `json:"all"`
		Map    map[string]string `json:"map,omitempty"`
		Time   *metav1.Time      `json:"time,omitempty"`
		Raw    json.RawMessage   `json:"raw,omitempty"`
	}
	type whole struct {
		Part `json:",inline"`
		More Part `json:"more"`
	}
	second := metav1.Unix(1, 0)
	later := metav1.Unix(1, 5)
	parts := []Part{
		{}, {Number: 1}, {Text: "a"}, {List: []string{}}, {List: []string{"a"}}, {All: []string{}},
		{Map: map[string]string{}}, {Map: map[string]string{"a": ""}},
		{Time: &second}, {Time: &later}, {Raw: json.RawMessage(`{"a":1}`)}, {Raw: json.RawMessage(`{ "a": 1 }`)},
	}
	for _, a := range parts {
		for _, b := range parts {
			for _, pair := range [][2]whole{{{Part: a}, {Part: b}}, {{More: a}, {More: b}}} {
				before, err := json.Marshal(pair[0])
				require.NoError(t, err)
				after, err := json.Marshal(pair[1])
				require.NoError(t, err)
				changed, ok := differ(reflect.ValueOf(pair[0]), reflect.ValueOf(pair[1]))
				require.True(t, ok)
				require.Equal(t, string(before) != string(after), changed, "%s, %s", before, after)
			}
		}
	}
}
