package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// onlyFrom refuses options that describe a task, since the template of --from describes it.
func onlyFrom(cmd *cobra.Command) (err error) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && !slices.Contains([]string{"from", "arg", "wait", "rm", "kubeconfig", "namespace"}, f.Name) {
			err = errors.New("--from runs the task of a template: leave out --" + f.Name + ", or change the template")
		}
	})
	return err
}

// from returns the task of a template or schedule with the given arguments. It belongs to the user: neither the end of
// the template nor its history limits delete it.
func (c cluster) from(ctx context.Context, o RunOptions) (*tasks.Task, error) {
	var s tasks.TaskSchedule
	err := c.Client.Get(ctx, ctrl.ObjectKey{Namespace: c.Namespace, Name: o.From}, &s)
	if apierrors.IsNotFound(err) {
		if err := c.CheckNamespace(ctx); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("there is no template or schedule %s in namespace %s: `coracle ctl get taskschedules` lists "+
			"them", o.From, c.Namespace)
	}
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for _, pair := range o.Arguments {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("--arg %q is not of the form NAME=value", pair)
		}
		if _, twice := values[name]; twice {
			return nil, fmt.Errorf("--arg %s is given twice", name)
		}
		values[name] = value
	}
	t, err := s.NewTask(values)
	if err != nil {
		return nil, err
	}
	t.Namespace, t.Name = c.Namespace, o.Name
	if o.Name == "" {
		t.GenerateName = s.Name + "-"
	}
	if o.Remove && !o.Wait {
		t.Spec.TTLSecondsAfterFinished = new(int32)
	}
	return t, nil
}
