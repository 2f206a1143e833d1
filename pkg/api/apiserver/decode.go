package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/api/payload"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// maxBody is the maximum size of a request body in bytes, as upstream.
const maxBody = 3 << 20

// readBody reads a whole request body. If it is larger than maxBody, the error is a Status 413.
func readBody(req *http.Request) ([]byte, error) {
	if req.Body == nil {
		return nil, nil
	}
	if held, ok := req.Body.(*heldBody); ok {
		return held.raw, nil
	}
	if req.ContentLength > maxBody {
		return nil, tooLarge()
	}
	var b bytes.Buffer
	if req.ContentLength > 0 {
		b.Grow(int(req.ContentLength) + bytes.MinRead)
	}
	if _, err := b.ReadFrom(io.LimitReader(req.Body, maxBody+1)); err != nil {
		return nil, apierrors.NewBadRequest("the request's body could not be read: " + err.Error())
	}
	if b.Len() > maxBody {
		return nil, tooLarge()
	}
	return b.Bytes(), nil
}

func tooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
}

// bodyMedia returns the media type of a request body. The error is a Status 415.
func bodyMedia(req *http.Request) (media, error) {
	header := req.Header.Get("Content-Type")
	switch header {
	case "", typeJSON:
		return mediaJSON, nil
	case typeProto:
		return mediaProto, nil
	}
	if name, _, err := mime.ParseMediaType(header); err == nil {
		switch name {
		case typeJSON:
			return mediaJSON, nil
		case typeYAML:
			return mediaYAML, nil
		case typeProto:
			return mediaProto, nil
		}
	}
	return 0, negotiation.NewUnsupportedMediaTypeError([]string{typeJSON, typeYAML, typeProto})
}

// decode reads an object of kind gvk from body into obj, which must have that kind's Go type. It neither defaults
// nor converts. directive is the request's fieldValidation: unknown and duplicate fields are an error (Strict), a
// warning (Warn and the empty string) or ignored (Ignore). Errors are Status 400 with upstream's texts, or 413 for a
// body that would take too much memory to decode.
//
// coerce, if not nil, converts objects without a Go type to their kind's schema.
func decode(req *http.Request, m media, body []byte, gvk schema.GroupVersionKind, obj runtime.Object, directive string,
	coerce coercer) error {
	found := gvk
	strict, err := unmarshal(m, body, &found, obj, directive != metav1.FieldValidationIgnore)
	if u, ok := obj.(*unstructured.Unstructured); ok && err == nil && coerce != nil {
		var unknown []string
		unknown, err = coerce(u, kind.Coercion{Unknown: directive != metav1.FieldValidationIgnore})
		for _, path := range unknown {
			strict = append(strict, fmt.Errorf("unknown field %q", path))
		}
	}
	if err == nil && len(strict) > 0 {
		if directive == metav1.FieldValidationStrict {
			err = runtime.NewStrictDecodingError(strict)
		} else {
			for _, w := range strict {
				warning.AddWarning(req.Context(), "", w.Error())
			}
		}
	}
	var other errVersion
	var shape *payload.ShapeError
	switch {
	case errors.As(err, &shape):
		return apierrors.NewRequestEntityTooLargeError(shape.Error())
	case errors.As(err, &other):
		return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API "+
			"version (%v)", found.GroupVersion(), gvk.GroupVersion()))
	case err != nil && found.Kind != "":
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", found.Kind,
			found.Version, gvk.Kind, err))
	case err != nil:
		return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)",
			gvk.Kind, err, summary(body)))
	}
	if _, ok := obj.(*unstructured.Unstructured); !ok { // for unstructured objects the strategy checks the kind
		obj.GetObjectKind().SetGroupVersionKind(gvk)
	}
	auditObject(req.Context(), obj)
	return nil
}

// coercer is kind.Resource.Coerce.
type coercer = func(client.Object, kind.Coercion) ([]string, error)

type errVersion struct{}

func (errVersion) Error() string { return "another version" }

// summary returns the first 30 bytes of data for an error message, as text for JSON and as hex otherwise.
func summary(b []byte) string {
	const most = 30
	more := ""
	if len(b) > most {
		b, more = b[:most], " ..."
	}
	switch {
	case len(b) == 0:
		return "<empty>"
	case b[0] == '{':
		return string(b) + more
	}
	return fmt.Sprintf("%x%s", b, more)
}

// oldEviction is the version in which old clients send evictions. Its fields are the same as in policy/v1.
const oldEviction = "policy/v1beta1"

// checkKind compares the apiVersion and kind of the data with gvk, the expected kind. It sets gvk to what the data
// says.
func checkKind(gvk *schema.GroupVersionKind, apiVersion, kind string) error {
	want := *gvk
	if kind != "" {
		gvk.Kind = kind
	}
	if apiVersion == oldEviction && want.Kind == "Eviction" {
		apiVersion = want.GroupVersion().String()
	}
	if apiVersion != "" {
		gv, err := schema.ParseGroupVersion(apiVersion)
		if err != nil {
			return err
		}
		gvk.Group, gvk.Version = gv.Group, gv.Version
	}
	switch {
	case gvk.GroupVersion() != want.GroupVersion():
		return errVersion{}
	case gvk.Kind != want.Kind:
		return fmt.Errorf("converting (%s.%s) to (%s.%s): unknown conversion", gvk.Version, gvk.Kind, want.Version, want.Kind)
	}
	return nil
}

func unmarshal(m media, body []byte, gvk *schema.GroupVersionKind, obj runtime.Object, strict bool) ([]error, error) {
	var found []error
	switch m {
	case mediaProto:
		return nil, unmarshalProto(body, gvk, obj)
	case mediaYAML:
		if err := payload.CheckYAML(body); err != nil {
			return nil, err
		}
		var j []byte
		var err error
		if strict {
			if j, err = yaml.YAMLToJSONStrict(body); err != nil {
				// Decode again without strict checks: a remaining error is fatal, the others are findings.
				if j2, err2 := yaml.YAMLToJSON(body); err2 == nil {
					found, j, err = append(found, brief(err)), j2, nil
				}
			}
		} else {
			j, err = yaml.YAMLToJSON(body)
		}
		if err != nil {
			gvk.Kind = ""
			return nil, brief(err)
		}
		body = j
	}
	if err := payload.Check(body, obj); err != nil {
		return nil, err
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		more, err := unmarshalUntyped(body, gvk, u, strict)
		return append(found, more...), err
	}
	// Decode first and check the kind afterwards, so that valid data is decoded only once.
	var more []error
	var err error
	if strict {
		more, err = kjson.UnmarshalStrict(body, obj)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(body, obj)
	}
	is := obj.GetObjectKind().GroupVersionKind()
	apiVersion, kind := is.GroupVersion().String(), is.Kind
	if err != nil || is.Version == "" { // invalid, or without a version, or with one that cannot be decoded
		var bad error
		if apiVersion, kind, bad = saysItIs(body); bad != nil {
			gvk.Kind = ""
			return nil, bad
		}
	}
	if mismatch := checkKind(gvk, apiVersion, kind); mismatch != nil {
		return nil, mismatch
	}
	return append(found, more...), err
}

// saysItIs returns the version and kind in JSON. Its error has upstream's text, including the names of Go types.
func saysItIs(body []byte) (apiVersion, kind string, err error) {
	var found struct {
		APIVersion string `json:"apiVersion,omitempty"`
		Kind       string `json:"kind,omitempty"`
	}
	if err := json.Unmarshal(body, &found); err != nil {
		return "", "", fmt.Errorf("couldn't get version/kind; json parse error: %w", err)
	}
	return found.APIVersion, found.Kind, nil
}

// unmarshalUntyped decodes an object without a Go type and sets gvk to the kind that the object states. The strategy
// refuses an unexpected kind.
func unmarshalUntyped(body []byte, gvk *schema.GroupVersionKind, u *unstructured.Unstructured,
	strict bool) ([]error, error) {
	var found []error
	var err error
	content := map[string]any{}
	if strict {
		found, err = kjson.UnmarshalStrict(body, &content)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(body, &content)
	}
	want := *gvk
	u.Object = content
	apiVersion, _ := content["apiVersion"].(string)
	if gvk.Kind, _ = content["kind"].(string); err != nil || gvk.Kind == "" {
		_, said, bad := saysItIs(body)
		if gvk.Kind = said; bad != nil {
			return nil, bad
		}
		if err == nil {
			err = runtime.NewMissingKindErr(string(body))
		}
		return nil, brief(err)
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, err
	}
	if gvk.Group, gvk.Version = gv.Group, gv.Version; gv != want.GroupVersion() {
		return nil, errVersion{}
	}
	return found, nil
}

// maxFinding is the maximum size, in bytes, of one validation finding: a YAML error lists every duplicate key.
const maxFinding = 4 << 10

func brief(err error) error {
	if text := err.Error(); len(text) > maxFinding {
		return errors.New(bounded.Text(text, maxFinding))
	}
	return err
}

// unmarshalProto decodes upstream's envelope (runtime.Unknown) and the message in it.
func unmarshalProto(body []byte, gvk *schema.GroupVersionKind, obj runtime.Object) error {
	raw, ok := bytes.CutPrefix(body, []byte(protoMagic))
	if !ok {
		gvk.Kind = ""
		return errors.New("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
	}
	var u runtime.Unknown
	if err := u.Unmarshal(raw); err != nil {
		gvk.Kind = ""
		return err
	}
	if err := checkKind(gvk, u.APIVersion, u.Kind); err != nil {
		return err
	}
	target, ok := obj.(interface{ Unmarshal([]byte) error })
	if !ok {
		return errors.New("this kind has no protobuf form: send JSON")
	}
	if u.ContentEncoding != "" || (u.ContentType != "" && !strings.HasPrefix(u.ContentType, typeProto)) {
		return fmt.Errorf("content type %q in the envelope is not protobuf", u.ContentType)
	}
	if err := payload.CheckProto(u.Raw, obj); err != nil {
		return err
	}
	return target.Unmarshal(u.Raw)
}
