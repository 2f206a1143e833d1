package v1alpha1

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxSubject = 256
	maxStream  = 128
)

// CheckSubjectPattern returns an error text for a text that is not a NATS subject, with or without wildcards, or "".
func CheckSubjectPattern(text string) string {
	if text == "" || len(text) > maxSubject {
		return fmt.Sprintf("must have 1 to %d bytes", maxSubject)
	}
	tokens := strings.Split(text, ".")
	for i, token := range tokens {
		wild := strings.ContainsAny(token, "*>")
		bad := func(r rune) bool { return r <= ' ' || r > '~' }
		if token == "" || strings.ContainsFunc(token, bad) || wild && len(token) > 1 || token == ">" && i < len(tokens)-1 {
			return "must have tokens of printable ASCII characters with dots in between; * is a token, > the last token"
		}
	}
	return ""
}

// CheckSubject returns an error text for a subject that no worker may use, or "". The subjects that NATS and the
// queues of workers use themselves are such.
func CheckSubject(text string) string {
	if why := CheckSubjectPattern(text); why != "" {
		return why
	}
	first, _, _ := strings.Cut(text, ".")
	switch {
	case strings.HasPrefix(first, "*"), first == ">":
		return "must not begin with a wildcard: it would match internal subjects of NATS"
	case strings.HasPrefix(first, "$"), strings.HasPrefix(first, "_"), first == "coracle":
		return "is an internal subject of NATS or of the queues of workers"
	}
	return ""
}

// MatchSubject reports whether a pattern matches all subjects that another one matches or, with overlap, any of them.
func MatchSubject(pattern, other string, overlap bool) bool {
	p, o := strings.Split(pattern, "."), strings.Split(other, ".")
	for i, token := range p {
		switch {
		case i == len(o):
			return false
		case token == ">":
			return true
		case o[i] == ">":
			return overlap
		case token != "*" && token != o[i] && (!overlap || o[i] != "*"):
			return false
		}
	}
	return len(p) == len(o)
}

// AllowSubject returns an error text for a subject that a namespace's workers may not use with the server's option
// nats-subjects, or "".
func AllowSubject(option []string, namespace, subject string) string {
	if why := CheckSubject(subject); why != "" {
		return why
	}
	var allowed []string
	for _, p := range option {
		p = strings.ReplaceAll(p, "{namespace}", namespace)
		if MatchSubject(p, subject, false) {
			return ""
		}
		allowed = append(allowed, p)
	}
	return fmt.Sprintf("workers of namespace %s may use %s: the server's option nats-subjects allows further subjects",
		namespace, strings.Join(allowed, ", "))
}

// WorkerSubject is a NATS subject in a worker.
//
// +kubebuilder:object:generate=false
type WorkerSubject struct {
	Path *field.Path
	Name string
}

// SubjectsOf returns the NATS subjects in a worker.
func SubjectsOf(s *WorkerSpec) (list []WorkerSubject) {
	path := field.NewPath("spec")
	for i := range s.Triggers {
		if t := s.Triggers[i].NATS; t != nil {
			list = append(list, WorkerSubject{path.Child("triggers").Index(i).Child("nats", "subject"), t.Subject})
		}
	}
	if to := s.Delivery.RepliesSubject; to != "" {
		list = append(list, WorkerSubject{path.Child("delivery", "repliesSubject"), to})
	}
	return list
}

// validateNATS validates the NATS subjects of a worker, except for the server's option nats-subjects.
func validateNATS(s *WorkerSpec, path *field.Path) (errs field.ErrorList) {
	to, at := s.Delivery.RepliesSubject, path.Child("delivery", "repliesSubject")
	switch {
	case to != "" && s.Delivery.Replies != "":
		errs = append(errs, field.Forbidden(at, "may not be set when replies is set"))
	case strings.ContainsAny(to, "*>"):
		errs = append(errs, field.Invalid(at, to, "must not have wildcards"))
	}
	for _, subject := range SubjectsOf(s) {
		if why := CheckSubject(subject.Name); why != "" {
			errs = append(errs, field.Invalid(subject.Path, subject.Name, why))
		} else if subject.Name != to && to != "" && MatchSubject(subject.Name, to, false) {
			errs = append(errs, field.Invalid(subject.Path, subject.Name, "matches delivery.repliesSubject: the worker would "+
				"get its own replies"))
		}
	}
	for i := range s.Triggers {
		t, at := s.Triggers[i].NATS, path.Child("triggers").Index(i).Child("nats", "stream")
		switch {
		case t == nil:
		case len(t.Stream) > maxStream || strings.ContainsAny(t.Stream, " .*>/\\\t\r\n"):
			errs = append(errs, field.Invalid(at, t.Stream, fmt.Sprintf("must have at most %d bytes, without spaces, dots, "+
				"slashes and wildcards", maxStream)))
		case strings.HasPrefix(t.Stream, "coracle-"):
			errs = append(errs, field.Forbidden(at, "streams with this prefix hold the queues of workers"))
		}
	}
	return errs
}
