"""What of a configuration stays: single knobs dropped, culprits of a changed loss, what each knob gives."""
