package command

import (
	"encoding/json"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// PrintManifests writes objects as YAML documents to apply, without status and creation time. Their TypeMeta must be
// set.
func PrintManifests[T runtime.Object](w io.Writer, objects ...T) error {
	for _, o := range objects {
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			return err
		}
		delete(fields, "status")
		if meta, ok := fields["metadata"].(map[string]any); ok {
			delete(meta, "creationTimestamp")
		}
		if text, err = yaml.Marshal(fields); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}
