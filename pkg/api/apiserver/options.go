package apiserver

import (
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	listvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// parameters decodes query parameters into options and validates them.
func parameters[T any](req *http.Request, kind string, convert func(*url.Values, *T, conversion.Scope) error,
	validate func(*T) field.ErrorList) (T, error) {
	var o T
	if req.URL.RawQuery != "" {
		values := req.URL.Query()
		if err := convert(&values, &o, nil); err != nil {
			return o, apierrors.NewBadRequest(err.Error())
		}
		if validate != nil {
			if errs := validate(&o); len(errs) > 0 {
				return o, invalidOptions(kind, errs)
			}
		}
	}
	return o, nil
}

func invalidOptions(kind string, errs field.ErrorList) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

func listOptions(req *http.Request) (metav1.ListOptions, error) {
	o, err := parameters(req, "ListOptions", metav1.Convert_url_Values_To_v1_ListOptions,
		func(o *metav1.ListOptions) field.ErrorList {
			return listvalidation.ValidateListOptions(&internalversion.ListOptions{
				Watch: o.Watch, ResourceVersion: o.ResourceVersion, ResourceVersionMatch: o.ResourceVersionMatch,
				Continue: o.Continue, Limit: o.Limit, SendInitialEvents: o.SendInitialEvents,
				AllowWatchBookmarks: o.AllowWatchBookmarks, TimeoutSeconds: o.TimeoutSeconds,
			}, true)
		})
	o.Limit = max(o.Limit, 0) // as upstream, negative means no limit
	return o, err
}

func createOptions(req *http.Request) (metav1.CreateOptions, error) {
	return parameters(req, "CreateOptions", metav1.Convert_url_Values_To_v1_CreateOptions,
		validation.ValidateCreateOptions)
}

func updateOptions(req *http.Request) (metav1.UpdateOptions, error) {
	return parameters(req, "UpdateOptions", metav1.Convert_url_Values_To_v1_UpdateOptions,
		validation.ValidateUpdateOptions)
}
