// Command keda reads ScaledObjects strictly and asks a Prometheus by KEDA's own scaler, as its operator would:
//
//	keda URL FILE...
//
// A line a Prometheus trigger: OBJECT/TRIGGER TYPE TARGET QUERY: the value and whether it activates, or "error" and why. TYPE and
// TARGET are those of the HPA that KEDA makes.
//
// The package scalers is two files of KEDA's own, unchanged: all scalers of that folder need the SDK of every service.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"github.com/kedacore/keda/v2/pkg/scalers/scalersconfig"
	autoscaling "k8s.io/api/autoscaling/v2"
	"sigs.k8s.io/yaml"

	"keda/scalers"
)

func main() {
	for _, file := range os.Args[2:] {
		if err := answer(os.Args[1], file); err != nil {
			fmt.Fprintf(os.Stderr, "keda: %s: %v\n", file, err)
			os.Exit(1)
		}
	}
}

func answer(url, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var object v1alpha1.ScaledObject
		if err := yaml.UnmarshalStrict(document, &object); err != nil {
			return err
		}
		if err := v1alpha1.ValidateTriggers(object.Spec.Triggers); err != nil {
			return err
		}
		for index, trigger := range object.Spec.Triggers {
			if trigger.Type != "prometheus" {
				continue
			}
			trigger.Metadata["serverAddress"] = url
			line, err := ask(&object, index, trigger)
			if err != nil {
				return err
			}
			fmt.Printf("%s/%s %s\n", object.Name, trigger.Name, line)
		}
	}
	return nil
}

func ask(object *v1alpha1.ScaledObject, index int, trigger v1alpha1.ScaleTriggers) (string, error) {
	ctx := context.Background()
	scaler, err := scalers.NewPrometheusScaler(&scalersconfig.ScalerConfig{
		ScalableObjectName:      object.Name,
		ScalableObjectNamespace: object.Namespace,
		ScalableObjectType:      "ScaledObject",
		GlobalHTTPTimeout:       5 * time.Second,
		TriggerName:             trigger.Name,
		TriggerType:             trigger.Type,
		TriggerMetadata:         trigger.Metadata,
		TriggerIndex:            index,
		MetricType:              trigger.MetricType,
	})
	if err != nil {
		return "", err
	}
	defer scaler.Close(ctx)
	spec := scaler.GetMetricSpecForScaling(ctx)[0].External
	target := spec.Target.Value
	if spec.Target.Type == autoscaling.AverageValueMetricType {
		target = spec.Target.AverageValue
	}
	asked := fmt.Sprintf("%s %s %s:", spec.Target.Type, target, trigger.Metadata["query"])
	values, active, err := scaler.GetMetricsAndActivity(ctx, spec.Metric.Name)
	if err != nil {
		return fmt.Sprintf("%s error %v", asked, err), nil
	}
	return fmt.Sprintf("%s %s %t", asked, values[0].Value.String(), active), nil
}
