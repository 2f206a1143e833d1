// Package object computes, for objects of any kind: the part that Kontrol records, the fields that other clients have
// changed, the template without ignored fields, and the health.
//
// It contains only pure functions, which do not change their arguments. Its invariant: drift is found from field
// ownership and by comparison with the cluster's answer to the apply, never with the request. So defaults, conversions,
// quantities and the order of lists are no drift.
package object

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/payload"
)

// recordedMeta lists the recorded fields of metadata: those that clients write.
var recordedMeta = []string{
	"name", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp",
}

// Record returns the part of an object that is recorded: without status and the metadata that servers set, and with
// hashes in place of a Secret's values. It shares memory with the object.
func Record(o map[string]any) map[string]any {
	out := make(map[string]any, len(o))
	for k, v := range o {
		if k != "status" && k != "metadata" {
			out[k] = v
		}
	}
	meta := map[string]any{}
	in, _ := o["metadata"].(map[string]any)
	for _, k := range recordedMeta {
		if v, ok := in[k]; ok {
			meta[k] = v
		}
	}
	out["metadata"] = meta
	if IsSecret(o) {
		for _, k := range []string{"data", "stringData"} {
			if values, ok := o[k].(map[string]any); ok {
				out[k] = hashed(values)
			}
		}
		if notes, ok := meta["annotations"].(map[string]any); ok && notes[lastApplied] != nil {
			meta["annotations"] = hashed(notes, lastApplied)
		}
	}
	return out
}

// lastApplied is the annotation in which kubectl stores the whole object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// IsSecret reports whether an object is a Secret.
func IsSecret(o map[string]any) bool { return o["kind"] == "Secret" && o["apiVersion"] == "v1" }

// hashed returns a copy of values with hashes in place of the value of the key, or of all values without a key.
func hashed(values map[string]any, keys ...string) map[string]any {
	out := make(map[string]any, len(values))
	for k, v := range values {
		out[k] = v
		if len(keys) == 0 || k == keys[0] {
			sum := sha256.Sum256(fmt.Append(nil, v))
			out[k] = "sha256:" + hex.EncodeToString(sum[:8])
		}
	}
	return out
}

// JSON returns the JSON of a recorded object, or a note in its place if it is larger than kontrol.MaxObject.
func JSON(o map[string]any) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if enc.Encode(o) != nil || out.Len() > kontrol.MaxObject {
		return fmt.Appendf(nil, `{"omitted":"the object has more than %d bytes"}`, kontrol.MaxObject)
	}
	return bytes.TrimSpace(out.Bytes())
}

// Parse parses a JSON object as the Kubernetes libraries do: integers are int64. It returns nil if raw is invalid.
func Parse(raw []byte) map[string]any {
	var o map[string]any
	if len(raw) == 0 || utiljson.Unmarshal(raw, &o) != nil {
		return nil
	}
	return o
}

// Same reports whether two JSON objects are equal after parsing: API servers differ in the characters they escape.
func Same(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, y := Parse(a), Parse(b)
	return x != nil && y != nil && reflect.DeepEqual(x, y)
}

// Owned returns the fields that Kontrol applied, according to an object's managed fields, and their JSON.
func Owned(managed []metav1.ManagedFieldsEntry) (*fieldpath.Set, []byte) {
	text := OwnedText(managed)
	return Fields(text), text
}

// OwnedText returns the JSON of the fields that Kontrol applied; nil if there are none.
func OwnedText(managed []metav1.ManagedFieldsEntry) []byte {
	for i := range managed {
		if m := &managed[i]; ours(m) && m.FieldsV1 != nil {
			return m.FieldsV1.GetRawBytes()
		}
	}
	return nil
}

// ours reports whether an entry lists the fields that Kontrol applied.
func ours(m *metav1.ManagedFieldsEntry) bool {
	return m.Manager == kontrol.FieldManager && m.Operation == metav1.ManagedFieldsOperationApply && m.Subresource == ""
}

// maxFields limits the sum of the squared numbers of keys per map. Clusters send managed fields, and parsing them takes
// quadratic time: it inserts each key into a sorted list.
const maxFields = 12_000 * 12_000

// Fields parses the JSON of managed fields. The result is empty if raw is invalid or has more keys than maxFields
// allows.
func Fields(raw []byte) *fieldpath.Set {
	set := &fieldpath.Set{}
	if shape, err := payload.Measure(raw, &map[string]any{}); err != nil || shape.Maps > maxFields {
		return fieldpath.NewSet()
	}
	if len(raw) == 0 || set.FromJSON(bytes.NewReader(raw)) != nil {
		return fieldpath.NewSet()
	}
	return set
}

// IDs returns the values of Kontrol's annotations on an object; 0 if one is missing or not a number.
func IDs(o *unstructured.Unstructured) (id, generation, revision int64) {
	number := func(key string) (n int64) {
		_, _ = fmt.Sscan(o.GetAnnotations()[key], &n)
		return n
	}
	return number(kontrol.AnnotationID), number(kontrol.AnnotationGeneration), number(kontrol.AnnotationRevision)
}
