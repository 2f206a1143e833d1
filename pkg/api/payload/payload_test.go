package payload

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

const most = 3 << 20

// full returns a body of the maximum size: head, comma-separated repetitions of unit, tail.
func full(head, unit, tail string) []byte {
	n := (most - len(head) - len(tail)) / (len(unit) + 1)
	return []byte(head + strings.TrimSuffix(strings.Repeat(unit+",", n), ",") + tail)
}

// grown returns the bytes of heap allocated by f.
func grown(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

func TestHostileJSONIsRefusedBeforeItIsDecoded(t *testing.T) {
	deep := strings.Repeat(`{"a":`, MaxDepth+1) + "1" + strings.Repeat("}", MaxDepth+1)
	spread := `{"whenUnsatisfiable":"x"}`
	for name, c := range map[string]struct {
		body []byte
		obj  any
		says string
	}{
		"containers":    {full(`{"spec":{"containers":[`, `{}`, `]}}`), &corev1.Pod{}, ""},
		"constraints":   {full(`{"spec":{"topologySpreadConstraints":[`, spread, `]}}`), &corev1.Pod{}, "too many items"},
		"probes":        {full(`{"spec":{"containers":[`, `{"livenessProbe":{"httpGet":{}}}`, `]}}`), &corev1.Pod{}, ""},
		"maps":          {full(`{"a":[`, `{"":0}`, `]}`), &map[string]any{}, ""},
		"empty lists":   {full(`{"a":[`, `[]`, `]}`), &map[string]any{}, ""},
		"nested":        {[]byte(deep + strings.Repeat(" ", Small)), &map[string]any{}, "nest at most"},
		"nested, typed": {[]byte(`{"spec":` + deep + `}` + strings.Repeat(" ", Small)), &corev1.Pod{}, "nest at most"},
		"a quantity": {[]byte(`{"spec":{"overhead":{"cpu":"` + strings.Repeat("9", most-100) + `"}}}`), &corev1.Pod{},
			"a resource quantity may have"},
		"a number as a quantity": {
			[]byte(`{"spec":{"overhead":{"cpu":` + strings.Repeat("9", most-100) + `}}}`), &corev1.Pod{},
			"a resource quantity may have",
		},
		"a key":                   {[]byte(`{"` + strings.Repeat("k", MaxKey+1) + `":1}`), &corev1.Pod{}, "a key may have"},
		"many keys":               {manyKeys(100_000), &corev1.ConfigMap{}, "too many keys"},
		"many keys of a raw part": {manyKeys(100_000), &appsv1.ControllerRevision{}, "too many keys"},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			require.Less(t, grown(func() { err = Check(c.body, c.obj) }), int64(1<<20), "the check itself allocates")
			var shape *ShapeError
			require.ErrorAs(t, err, &shape)
			require.Contains(t, err.Error(), c.says)
		})
	}
}

func manyKeys(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"data":{`)
	for i := range n {
		fmt.Fprintf(&b, `"%d":"",`, i)
	}
	return []byte(strings.TrimSuffix(b.String(), ",") + `}}`)
}

// Objects of real clusters pass with a margin.
func TestLargeObjectsPass(t *testing.T) {
	policy := &networkingv1.NetworkPolicy{}
	policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{}}
	for i := range 10_000 {
		policy.Spec.Ingress[0].From = append(policy.Spec.Ingress[0].From,
			networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)}})
	}
	cm := &corev1.ConfigMap{Data: map[string]string{}}
	for i := range 10_000 {
		cm.Data[fmt.Sprintf("key-%d", i)] = strings.Repeat("v", 90)
	}
	secret := &corev1.Secret{Data: map[string][]byte{"a": make([]byte, 1<<20)}}
	for _, obj := range []interface{ Marshal() ([]byte, error) }{policy, cm, secret} {
		j, err := json.Marshal(obj)
		require.NoError(t, err)
		require.NoError(t, Check(j, obj))
		require.NoError(t, Check(j, &map[string]any{}))
		pb, err := obj.Marshal()
		require.NoError(t, err)
		require.NoError(t, CheckProto(pb, obj))
	}
}

func field(number, kind int, in []byte) []byte {
	b := binary.AppendUvarint(nil, uint64(number<<3|kind))
	return append(binary.AppendUvarint(b, uint64(len(in))), in...)
}

func TestHostileProtobufIsRefusedBeforeItIsDecoded(t *testing.T) {
	var lists []byte
	for range most / 2 {
		lists = append(lists, 2<<3|2, 0)
	}
	quantity := field(1, 2, []byte(strings.Repeat("9", Small)))
	for name, body := range map[string][]byte{
		"containers":       field(2, 2, lists),
		"split in two":     append(field(2, 2, lists[:len(lists)/2]), field(2, 2, lists[len(lists)/2:])...),
		"owners":           field(1, 2, []byte(strings.Repeat("\x6a\x00", most/2))),
		"a label's key":    field(1, 2, field(11, 2, field(1, 2, make([]byte, MaxKey+1)))),
		"after a group":    append([]byte{99<<3&0x7f | 3 | 0x80, 6, 99<<3&0x7f | 4 | 0x80, 6}, field(2, 2, lists)...),
		"a tag of 33 bits": append(binary.AppendUvarint(nil, (1<<32+2)<<3|2), field(2, 2, lists)[1:]...),
		"a tag of ten bytes": append([]byte{0x92, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7e},
			field(2, 2, lists)[1:]...),
		"a quantity": field(2, 2, field(32, 2, append(field(1, 2, []byte("cpu")), field(2, 2, quantity)...))),
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			require.Less(t, grown(func() { err = CheckProto(body, &corev1.Pod{}) }), int64(1<<20), "the check itself allocates")
			var shape *ShapeError
			require.ErrorAs(t, err, &shape)
		})
	}
}

// JSON inside of a protobuf message counts as it does in JSON.
func TestRawPartsOfProtobuf(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		says string
	}{
		"nested":       {strings.Repeat(`{"a":`, MaxDepth) + "1" + strings.Repeat("}", MaxDepth), "nest at most"},
		"keys":         {string(manyKeys(100_000)), "too many keys"},
		"items":        {"[" + strings.Repeat("1,", 21_000) + "1]", "too many items"},
		"small lists":  {"[" + strings.Repeat("["+strings.Repeat("1,", 99)+"1],", 9999) + "[]]", "bytes of memory"},
		"usual":        {string(manyKeys(2_000)), ""},
		"not JSON":     {"k8s\x00" + strings.Repeat("[", 2*MaxDepth), ""},
		"not complete": {`{"a":[1,`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := &appsv1.ControllerRevision{Data: k8sruntime.RawExtension{Raw: []byte(c.data)}}
			body, err := o.Marshal()
			require.NoError(t, err)
			_, err = MeasureProto(body, o)
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			var shape *ShapeError
			require.ErrorAs(t, err, &shape)
			require.Contains(t, err.Error(), c.says)
		})
	}
}

// The estimate is at least half of the memory that the decoder uses.
func TestTheEstimateIsTrue(t *testing.T) {
	for name, c := range map[string]struct {
		body []byte
		obj  any
	}{
		"containers": {full(`{"spec":{"containers":[`, `{}`, `]}}`)[:0], &corev1.Pod{}},
		"env": {
			[]byte(`{"spec":{"containers":[{"env":[` +
				strings.TrimSuffix(strings.Repeat(`{"name":"a","value":"b"},`, 10_000), ",") + `]}]}}`),
			&corev1.Pod{},
		},
		"maps": {
			[]byte(`{"a":[` + strings.TrimSuffix(strings.Repeat(`{"a":1,"b":{}},`, 10_000), ",") + `]}`),
			&map[string]any{},
		},
		"labels": {manyKeys(10_000), &corev1.ConfigMap{}},
	} {
		t.Run(name, func(t *testing.T) {
			if len(c.body) == 0 {
				c.body = []byte(`{"spec":{"containers":[` + strings.TrimSuffix(strings.Repeat(`{},`, 10_000), ",") + `]}}`)
			}
			s, err := Measure(c.body, c.obj)
			require.NoError(t, err)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.GC() // the first collection only marks pooled memory
			runtime.ReadMemStats(&before)
			require.NoError(t, json.Unmarshal(c.body, c.obj))
			runtime.GC()
			runtime.ReadMemStats(&after)
			real := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			runtime.KeepAlive(c.obj)
			t.Logf("estimated %d, kept %d", s.Memory, real)
			require.Greater(t, s.Memory*2, real)
			require.Less(t, s.Memory, real*4)
		})
	}
}

func TestYAML(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	chain := "a0: &a0 x\n"
	for i := range 60 {
		chain += fmt.Sprintf("a%d: &a%d [*a%d, *a%d, *a%d]\n", i+1, i+1, i, i, i)
	}
	for name, c := range map[string]struct {
		body string
		ok   bool
	}{
		"one string often":  {"a: &a " + big + "\nz: [*a, *a, *a, *a]\n", false},
		"powers":            {chain, false},
		"merges":            {"a: &a {k: " + big + "}\nb: {<<: *a}\nc: {<<: *a}\nd: {<<: *a}\n", false},
		"many values":       {"a: [" + strings.Repeat("0,", 1<<20) + "0]", false},
		"many short lines":  {strings.Repeat("- 0\n", 1<<19), false},
		"a few aliases":     {"a: &a {k: v}\nb: *a\nc: *a\n", true},
		"contains itself":   {"a: &a [*a]\n", true}, // refused by the decoder
		"text with a * & b": {"a: \"" + strings.Repeat("* & ", 1000) + "\"\n", true},
		"not YAML":          {"{", true},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			spent := grown(func() { err = CheckYAML([]byte(c.body)) })
			require.Less(t, spent, int64(32<<20))
			if c.ok {
				require.NoError(t, err)
				return
			}
			var shape *ShapeError
			require.ErrorAs(t, err, &shape)
		})
	}
	_, err := yaml.YAMLToJSON([]byte("a: &a [*a]\n"))
	require.Error(t, err)
}

// FuzzMeasure compares the scanner with encoding/json.
func FuzzMeasure(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,"x",{"b":[[],{}]}],"c":null}`, `[]`, `"\"\\"`, `{"a":1,}`, `{"metadata":{"labels":{"a":"b"}}}`,
		` [ 1 , 2 ] `, `[1 2]`, `-`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = Measure(body, &corev1.Pod{})
		s, err := Measure(body, &map[string]any{})
		var v any
		if json.Unmarshal(body, &v) != nil || err != nil {
			return
		}
		items, depth := count(v, 0)
		require.GreaterOrEqual(t, s.Items, items) // duplicate keys count twice
		require.GreaterOrEqual(t, s.Depth, depth)
	})
}

func count(v any, depth int) (items int64, deepest int) {
	switch v := v.(type) {
	case []any:
		deepest = depth + 1
		for _, x := range v {
			n, d := count(x, depth+1)
			items, deepest = items+n+1, max(deepest, d)
		}
	case map[string]any:
		deepest = depth + 1
		for _, x := range v {
			n, d := count(x, depth+1)
			items, deepest = items+n, max(deepest, d)
		}
	}
	return items, deepest
}

// FuzzMeasureProto checks that no message causes a panic, and that messages that decode are measured completely.
func FuzzMeasureProto(f *testing.F) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            "a",
			Labels:          map[string]string{"a": "b"},
			OwnerReferences: make([]metav1.OwnerReference, 2),
		},
	}
	p.Spec.Containers = make([]corev1.Container, 3)
	raw, _ := p.Marshal()
	f.Add(raw)
	f.Add([]byte{0x12, 0x02, 0x12, 0x00})
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := MeasureProto(body, &corev1.Pod{})
		pod := &corev1.Pod{}
		if err != nil || pod.Unmarshal(body) != nil {
			return
		}
		least := int64(len(pod.Spec.Containers)) * int64(reflect.TypeFor[corev1.Container]().Size())
		require.GreaterOrEqual(t, s.Memory, least)
		require.GreaterOrEqual(t, s.Longest, int64(len(pod.Spec.Containers)))
		require.GreaterOrEqual(t, s.Items,
			int64(len(pod.Spec.Containers)+len(pod.OwnerReferences)+len(pod.Spec.Volumes)+len(pod.Finalizers)))
		require.GreaterOrEqual(t, s.Maps, int64(len(pod.Labels)*len(pod.Labels)))
	})
}

// FuzzCheckYAML checks that documents that pass are not much larger as JSON.
func FuzzCheckYAML(f *testing.F) {
	for _, s := range []string{
		"a: &a b\nc: *a\n", "a: &a [*a]\n", "- - - 1\n", "{a: &x {b: *x}}", "a: &a {b: c}\nd: {<<: *a}\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 1<<16 || CheckYAML(body) != nil {
			return
		}
		if j, err := yaml.YAMLToJSON(body); err == nil {
			require.Less(t, len(j), 8*MaxYAML)
		}
	})
}
