// Package object reads, compares and cuts objects of any kind by the paths of their fields: what Kontrol records of
// them, which fields other clients changed, which fields it leaves to others, and whether they work.
//
// It contains only pure functions, which do not change their arguments unless they say so. Its invariant: fields are
// compared by who owns them and as the cluster answered, never with what was sent, so that defaults, conversions,
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

// recordedMeta is the metadata that is recorded: what people write.
var recordedMeta = []string{
	"name", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp",
}

// Record returns what is recorded of an object: without status and what servers set in metadata, and with the values of
// Secrets replaced by hashes. It shares memory with the object.
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

// lastApplied is the annotation in which kubectl repeats the whole object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// IsSecret reports whether an object is a Secret.
func IsSecret(o map[string]any) bool { return o["kind"] == "Secret" && o["apiVersion"] == "v1" }

// hashed replaces the values of the keys, or of all if there are none.
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

// JSON returns the JSON of a recorded object; what is too large to be recorded becomes a note that says so.
func JSON(o map[string]any) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if enc.Encode(o) != nil || out.Len() > kontrol.MaxObject {
		return fmt.Appendf(nil, `{"omitted":"the object has more than %d bytes"}`, kontrol.MaxObject)
	}
	return bytes.TrimSpace(out.Bytes())
}

// Parse parses JSON as the Kubernetes libraries do: integers are int64.
func Parse(raw []byte) map[string]any {
	var o map[string]any
	if len(raw) == 0 || utiljson.Unmarshal(raw, &o) != nil {
		return nil
	}
	return o
}

// Same reports whether two JSON objects are the same, however they are written: API servers differ in what they escape.
func Same(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, y := Parse(a), Parse(b)
	return x != nil && y != nil && reflect.DeepEqual(x, y)
}

// Owned returns the fields that Kontrol applied, by the managed fields of an object, and their JSON.
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

// ours reports whether an entry has the fields that Kontrol applied.
func ours(m *metav1.ManagedFieldsEntry) bool {
	return m.Manager == kontrol.FieldManager && m.Operation == metav1.ManagedFieldsOperationApply && m.Subresource == ""
}

// maxFields limits the sum of the squared numbers of keys of managed fields, which clusters send: parsing inserts each
// key into a sorted list.
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

// IDs returns what Kontrol's annotations on an object say; 0 for what is missing.
func IDs(o *unstructured.Unstructured) (id, generation, revision int64) {
	number := func(key string) (n int64) {
		_, _ = fmt.Sscan(o.GetAnnotations()[key], &n) // 0 if it is no number
		return n
	}
	return number(kontrol.AnnotationID), number(kontrol.AnnotationGeneration), number(kontrol.AnnotationRevision)
}
