package commands

import (
	"context"
	"fmt"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// Approve approves the current content of a Bundle, or generation of a Resource. If that changes at the same time,
// the new one is not approved.
func (c *cluster) Approve(ctx context.Context, name string, dryRun bool, t command.Terminal) error {
	var options []ctrl.SubResourceUpdateOption
	if dryRun {
		options = append(options, ctrl.DryRunAll)
	}
	var what string
	var err error
	if bundle, ok := strings.CutPrefix(name, bundlePrefix); ok {
		what, err = c.approveBundle(ctx, bundle, options)
	} else {
		what, err = c.approveResource(ctx, name, options)
	}
	if err != nil {
		return err
	}
	if dryRun {
		what += " (dry run)"
	}
	_, err = fmt.Fprintln(t.Out, what)
	return err
}

func (c *cluster) approveBundle(ctx context.Context, name string,
	options []ctrl.SubResourceUpdateOption) (string, error) {
	b, err := c.getBundle(ctx, name)
	if err != nil {
		return "", err
	}
	s := &b.Status
	switch {
	case b.Spec.Rollout.Approval != kontrol.ApprovalManual:
		return "", fmt.Errorf("bundle %s needs no approval: spec.rollout.approval is %s", b.Name, b.Spec.Rollout.Approval)
	case s.ObservedGeneration != b.Generation || s.Content == "":
		return "", fmt.Errorf("the content of bundle %s was not read yet: look at it, and try again", b.Name)
	case s.Approved == s.Content:
		return fmt.Sprintf("bundle %s: content %s is approved already", b.Name, s.Content), nil
	}
	s.Approved = s.Content
	return fmt.Sprintf("bundle %s: content %s approved", b.Name, s.Content), c.Client.Status().Update(ctx, b, options...)
}

func (c *cluster) approveResource(ctx context.Context, name string,
	options []ctrl.SubResourceUpdateOption) (string, error) {
	r, err := c.getResource(ctx, name)
	if err != nil {
		return "", err
	}
	s := &r.Status
	switch {
	case r.Spec.Approval != kontrol.ApprovalManual:
		return "", fmt.Errorf("resource %s needs no approval: spec.approval is not %s", r.Name, kontrol.ApprovalManual)
	case s.ObservedGeneration != r.Generation || !kontrol.IsAccepted(r):
		return "", fmt.Errorf("generation %d of resource %s was not looked at yet: try again", r.Generation, r.Name)
	case s.Approved == r.Generation:
		return fmt.Sprintf("resource %s: generation %d is approved already", r.Name, r.Generation), nil
	}
	s.Approved = r.Generation
	return fmt.Sprintf("resource %s: revision %d (generation %d) "+
		"approved", r.Name, kontrol.RevisionOf(r), r.Generation), c.Client.Status().Update(ctx, r, options...)
}
