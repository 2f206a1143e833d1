package apiserver

import (
	"cmp"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/registry/rest"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/api/payload"
	"github.com/coracle-dev/coracle/pkg/api/registry"
)

// empty returns a new object of the kind that requests to the target carry.
func empty(t registry.Target) (runtime.Object, schema.GroupVersionKind) {
	if sub := t.Resource.Subresource(t.Subresource); sub != nil && sub.New != nil {
		return sub.New(), sub.GroupVersionKind
	}
	return t.Resource.New(), t.Resource.GroupVersionKind
}

func decodeBody(req *http.Request, t registry.Target, directive string) (runtime.Object, error) {
	m, err := bodyMedia(req)
	if err != nil {
		return nil, err
	}
	raw, err := readBody(req)
	if err != nil {
		return nil, err
	}
	obj, gvk := empty(t)
	if err := decode(req, m, raw, gvk, obj, directive, t.Resource.Coerce); err != nil {
		return nil, err
	}
	return obj, nil
}

func (s *Server) create(w http.ResponseWriter, req *http.Request, t registry.Target) error {
	n, err := negotiate(req, s.forms(t))
	if err != nil {
		return err
	}
	o, err := createOptions(req)
	if err != nil {
		return err
	}
	obj, err := decodeBody(req, t, o.FieldValidation)
	if err != nil {
		return err
	}
	o.FieldManager = manager(o.FieldManager, req)
	res, err := s.objects(t.Resource).Create(req.Context(), t, obj, o)
	if err != nil {
		return err
	}
	if status, ok := res.Object.(*metav1.Status); ok && status.Code == 0 {
		status.Code = http.StatusCreated
	}
	return s.writeResult(w, req, n, http.StatusCreated, t, res)
}

func (s *Server) update(w http.ResponseWriter, req *http.Request, t registry.Target) error {
	n, err := negotiate(req, s.forms(t))
	if err != nil {
		return err
	}
	o, err := updateOptions(req)
	if err != nil {
		return err
	}
	obj, err := decodeBody(req, t, o.FieldValidation)
	if err != nil {
		return err
	}
	if err := sameName(obj, t); err != nil {
		return err
	}
	o.FieldManager = manager(o.FieldManager, req)
	res, err := s.cfg.Registry.Update(req.Context(), t, obj, o)
	if err != nil {
		return err
	}
	return s.writeResult(w, req, n, created(res), t, res)
}

func created(res registry.Result) int {
	if res.Created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// sameName refuses an object whose name or namespace differs from the path's.
func sameName(obj runtime.Object, t registry.Target) error {
	o, ok := obj.(metav1.Object)
	if !ok {
		return nil
	}
	if o.GetName() == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must "+
			"be provided", t.Name))
	}
	if o.GetName() != t.Name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)",
			o.GetName(), t.Name))
	}
	return rest.EnsureObjectNamespaceMatchesRequestNamespace(t.Namespace, o)
}

// manager returns the field manager of a write: given, or else the first part of the user agent, or else "unknown",
// as upstream.
func manager(given string, req *http.Request) string {
	if given != "" {
		return given
	}
	name, _, _ := strings.Cut(req.UserAgent(), "/")
	clean := strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r > 0x7e {
			return -1
		}
		return r
	}, name)
	if len(clean) > validation.FieldManagerMaxLength {
		clean = clean[:validation.FieldManagerMaxLength]
	}
	return cmp.Or(clean, "unknown")
}

func (s *Server) patch(w http.ResponseWriter, req *http.Request, t registry.Target) error {
	n, err := negotiate(req, s.forms(t))
	if err != nil {
		return err
	}
	name, _, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil {
		name = req.Header.Get("Content-Type")
	}
	pt := types.PatchType(name)
	switch pt {
	case types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType, types.ApplyYAMLPatchType:
	default:
		return negotiation.NewUnsupportedMediaTypeError([]string{
			string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType),
			string(types.ApplyYAMLPatchType),
		})
	}
	var o metav1.PatchOptions
	values := req.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_PatchOptions(&values, &o, nil); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if errs := validation.ValidatePatchOptions(&o, pt); len(errs) > 0 {
		return invalidOptions("PatchOptions", errs)
	}
	raw, err := readBody(req)
	if err != nil {
		return err
	}
	if pt != types.ApplyYAMLPatchType {
		o.FieldManager = manager(o.FieldManager, req)
	}
	auditBody(req)
	res, err := s.cfg.Registry.Patch(req.Context(), t, pt, raw, o)
	if err != nil {
		return err
	}
	return s.writeResult(w, req, n, created(res), t, res)
}

// deleteOptions reads the options from the body or, if it is empty, from the query.
func deleteOptions(req *http.Request) (metav1.DeleteOptions, error) {
	var o metav1.DeleteOptions
	raw, err := readBody(req)
	if err != nil {
		return o, err
	}
	if len(raw) == 0 {
		values := req.URL.Query()
		if err := metav1.Convert_url_Values_To_v1_DeleteOptions(&values, &o, nil); err != nil {
			return o, apierrors.NewBadRequest(err.Error())
		}
	} else {
		m, err := bodyMedia(req)
		if err != nil {
			return o, err
		}
		// Clients send DeleteOptions in any group and version, so check only the kind.
		switch m {
		case mediaProto:
			u := runtime.Unknown{}
			if len(raw) < len(protoMagic) || string(raw[:len(protoMagic)]) != protoMagic {
				err = fmt.Errorf("provided data does not appear to be a protobuf message")
			} else if err = u.Unmarshal(raw[len(protoMagic):]); err == nil {
				if err = o.Unmarshal(u.Raw); err == nil {
					o.Kind = u.Kind
				}
			}
		case mediaYAML:
			if err = payload.CheckYAML(raw); err == nil {
				err = yaml.Unmarshal(raw, &o)
			}
		default:
			err = kjson.UnmarshalCaseSensitivePreserveInts(raw, &o)
		}
		if shape, ok := errors.AsType[*payload.ShapeError](err); ok {
			return o, apierrors.NewRequestEntityTooLargeError(shape.Error())
		}
		if err != nil {
			return o, apierrors.NewBadRequest(err.Error())
		}
		if o.Kind != "" && o.Kind != "DeleteOptions" {
			return o, apierrors.NewBadRequest("decoded object cannot be converted to DeleteOptions")
		}
	}
	if errs := validation.ValidateDeleteOptions(&o); len(errs) > 0 {
		return o, invalidOptions("DeleteOptions", errs)
	}
	return o, nil
}

func (s *Server) delete(w http.ResponseWriter, req *http.Request, t registry.Target) error {
	n, err := negotiate(req, s.forms(t))
	if err != nil {
		return err
	}
	o, err := deleteOptions(req)
	if err != nil {
		return err
	}
	auditBody(req)
	res, err := s.cfg.Registry.Delete(req.Context(), t, o)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if res.Pending && o.OrphanDependents != nil && !*o.OrphanDependents { //nolint:staticcheck // old clients send it
		code = http.StatusAccepted
	}
	if res.Entry == nil && res.Object == nil {
		res.Object = &metav1.Status{
			Status:  metav1.StatusSuccess,
			Details: &metav1.StatusDetails{Name: t.Name, Group: t.Resource.Group, Kind: t.Resource.Plural},
		}
	}
	return s.writeResult(w, req, n, code, t, res)
}

func (s *Server) deleteCollection(w http.ResponseWriter, req *http.Request, t registry.Target) error {
	n, err := negotiate(req, can(t.Resource))
	if err != nil {
		return err
	}
	l, err := listOptions(req)
	if err != nil {
		return err
	}
	o, err := deleteOptions(req)
	if err != nil {
		return err
	}
	auditBody(req)
	list, err := s.cfg.Registry.DeleteCollection(req.Context(), t, o, l)
	if err != nil {
		return err
	}
	return s.writeList(w, req, n, t, list)
}
